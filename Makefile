# carob's build. `make help` lists the targets; README.md names the two that a user needs.

export CGO_ENABLED = 0
export GOFLAGS = -buildvcs=false -trimpath

GO        ?= go
BIN       := bin
CACHE     := .cache
KUBE      := v1.37.2
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT    := $(shell git rev-parse HEAD 2>/dev/null)
DATE      := $(shell TZ=UTC git log -1 --format=%cd --date=format-local:%FT%TZ 2>/dev/null)
LDFLAGS   := -s -w \
	-X main.version=$(VERSION) \
	$(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,-X $(p).gitVersion=$(KUBE) \
	-X $(p).gitMajor=1 -X $(p).gitMinor=37 -X $(p).gitTreeState=clean \
	-X $(p).gitCommit=$(or $(COMMIT),unknown) -X $(p).buildDate=$(or $(DATE),unknown))
TOOLS     := $(CACHE)/tools
LINTER    := v2.15.0
PKGS      := ./cmd/... ./internal/...
TESTING   := busybox containerd runc iptables /usr/lib/cni/bridge # programs without which tests are skipped
TESTED    := $(PKGS) ./test/mutants ./test/images/...
SOURCES   := $(shell find cmd internal -name '*.go') go.mod go.sum
NATIVE    := internal/runtime/native/csrc

.DEFAULT_GOAL := help
# client-go then notices who modifies an object that it shares with others.
test tests unit e2e e2e-containerd: export KUBE_CACHE_MUTATION_DETECTOR := true

.PHONY: help deps build native images run test tests unit e2e e2e-containerd check fmt static vet lint generate generate-check third-party-check arm64 bench bench-runtime bench-scheduler bench-workloads bench-node sim mutants fuzz conformance conformance-gateway critest helm operator cross differential differential-controllers nightly clauses clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install the Debian packages that building and testing need
	@hack/deps

build: $(BIN)/carob ## build bin/carob, static, with its C helpers embedded

native: deps ## build what is embedded: the runtime's C programs and the demo image
	@$(MAKE) --no-print-directory -C $(NATIVE)
	@$(GO) run ./test/images -out $(CACHE)/images demo >/dev/null
	@cmp -s $(CACHE)/images/demo.tar internal/cli/dist/demo.tar || cp $(CACHE)/images/demo.tar internal/cli/dist/demo.tar

$(BIN)/carob: native $(SOURCES)
	@mkdir -p $(BIN)
	$(GO) build -ldflags '$(LDFLAGS)' -o $@.linked ./cmd/carob
	@# A copy: the page cache holds the linker's file in huge pages, which count in full once a byte is used.
	@cp $@.linked $@.copy && mv -f $@.copy $@ && rm $@.linked
	@ln -sf carob $(BIN)/kubectl

images: deps ## build the test images from Debian packages and our own programs
	$(GO) run ./test/images -out $(CACHE)/images

run: build ## start a cluster, show the life of a pod, leave the cluster up
	@hack/run

test: build images ## everything: vet, unit tests, simulator, end to end on real containers, Helm
	$(GO) vet $(PKGS)
	@$(MAKE) --no-print-directory tests

tests: build images # all that `make test` runs, without vet
	@hack/deps $(TESTING)
	cd tools && $(GO) list -deps carob/internal/apiserver >/dev/null # its go.sum follows ours
	hack/gotest "$(TESTED)" -timeout 25m -vet=off
	$(MAKE) --no-print-directory e2e helm operator

unit: native ## unit tests only
	@hack/deps $(TESTING)
	hack/gotest "$(TESTED)" -timeout 25m

check: native fmt generate-check static ## format, vet, linters, architecture, generated files, arm64, dependencies
	$(GO) test ./internal/archtest

static: arm64 vet lint third-party-check # the part of `make check` that changes no file and is no test

fmt:
	@out=$$(gofmt -l cmd internal test tools); [ -z "$$out" ] || { echo "not gofmt-ed: $$out"; exit 1; }

vet: native
	$(GO) vet ./...

lint: native $(TOOLS)/golangci-lint
	$(TOOLS)/golangci-lint run --timeout 40m ./cmd/... ./internal/... ./test/...

$(TOOLS)/golangci-lint:
	GOBIN=$(CURDIR)/$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINTER)

generate: native ## make all generated files again
	cd tools && $(GO) run ./cmd/generate && $(GO) run ./cmd/validations
	$(GO) generate ./internal/runtime/native/seccomp
	hack/third-party > docs/third-party.txt

GENERATED := internal/kinds/openapi/documents internal/kinds/mergeschema internal/kinds/declarative internal/runtime/native/seccomp/numbers.go docs/third-party.txt
generate-check: generate
	@out=$$(git status --porcelain -- $(GENERATED)); [ -z "$$out" ] || { echo "generated files are not up to date, commit what 'make generate' made:"; echo "$$out"; exit 1; }

third-party-check:
	@hack/third-party | diff - docs/third-party.txt || { echo "the dependencies changed: look at the diff and run 'make generate'"; exit 1; }

arm64: deps ## build the C programs for linux/arm64, and check the types of all Go code, tests too, for it
	@hack/deps aarch64
	@$(MAKE) --no-print-directory -C $(NATIVE) cross
	cd tools && $(GO) test ./cmd/typecheck && $(GO) run ./cmd/typecheck -goarch arm64 $(PKGS) ./test/...

cross: arm64 ## build carob for linux/arm64: `make check` has the fast part of it, `make nightly` all
	GOARCH=arm64 $(GO) build -ldflags '$(LDFLAGS)' -o $(CACHE)/carob-arm64 ./cmd/carob

SEED  ?= 0
SEEDS ?= 10000
HOURS ?= 1
conformance: build ## Kubernetes' own suite: make conformance FOCUS='sig-node.*Probes' (LIST=file of names, PROCS=4, STAND_IN=endpoints)
	cd test/conformance && $(GO) run . -focus '$(FOCUS)' -procs $(or $(PROCS),4) $(if $(LIST),-list $(abspath $(LIST))) $(if $(STAND_IN),-stand-in $(STAND_IN))

GATEWAY_FLAGS ?= --gateway-addresses 127.77.0.0/24
conformance-gateway: build ## the Gateway API's own suites, with that of the inference extension: make conformance-gateway RUN=HTTPRouteMatching (needs root)
	$(GO) run ./test/images -out $(CACHE)/images echo-basic lwepp coredns
	cd test/gateway-conformance && CAROB=$(CURDIR)/$(BIN)/carob IMAGES=$(CURDIR)/$(CACHE)/images CAROB_FLAGS='$(GATEWAY_FLAGS)' \
		$(GO) test -v -count=1 -timeout 60m . -args $(if $(RUN),-run-test $(RUN)) $(if $(REPORT),-report-output $(abspath $(REPORT))) \
		$(if $(INFERENCE_REPORT),-inference-report-output $(abspath $(INFERENCE_REPORT)))

helm: build ## Helm 4, as a library, against a cluster of its own: install, upgrade, roll back, test, uninstall (needs root)
	cd test/helm && CAROB=$(CURDIR)/$(BIN)/carob ../../hack/gotest . -v -count=1

operator: build ## an operator made with controller-runtime against a cluster of its own, which is killed in between (needs root)
	cd test/operator && CAROB=$(CURDIR)/$(BIN)/carob ../../hack/gotest . -v -count=1

sim: build ## simulate the life of a pod with faults in virtual time: make sim SEED=1 SEEDS=1000 HOURS=3
	$(BIN)/carob sim --seed $(SEED) --seeds $(SEEDS) --hours $(HOURS)

mutants: ## break the life of a pod in many small ways: each must be noticed by a test or a seed
	$(GO) run ./test/mutants

FUZZTIME ?= 60s
fuzz: native ## run each fuzz target (parsers of outside data, the life of a pod) for FUZZTIME (ONLY=regexp of targets)
	@hack/fuzz $(FUZZTIME) $(ONLY)

e2e: build images ## end to end: real kubectl, real containers (needs root)
	@hack/deps containerd runc /usr/lib/cni/bridge
	CAROB=$(CURDIR)/$(BIN)/carob IMAGES=$(CURDIR)/$(CACHE)/images hack/gotest ./test/e2e -v -count=1 -parallel 6 -timeout 30m

e2e-containerd: build images ## the same tests on containerd and runc instead of carob's own runtime
	@hack/reference-runtimes $(TOOLS)/reference
	RUNTIME=containerd RUNTIME_PROGRAMS=$(CURDIR)/$(TOOLS)/reference OCI_RUNTIME=$(CURDIR)/$(TOOLS)/reference/runc \
		CAROB=$(CURDIR)/$(BIN)/carob IMAGES=$(CURDIR)/$(CACHE)/images hack/gotest ./test/e2e -v -count=1 -parallel 6 -timeout 40m

critest: build ## the container runtime interface's own suite, against carob's runtime (needs what `make conformance` built)
	@hack/critest $(BIN)/carob $(or $(CONFORMANCE_CACHE),$(HOME)/.cache/carob-conformance)

differential: build ## send the same requests to carob and to upstream's API server, and compare the responses
	@hack/differential $(abspath $(BIN)/carob)

differential-controllers: native ## the same random histories to carob's controllers and to upstream's: make differential-controllers ARGS='-seed 7 -seeds 1 -v'
	@$(GO) build -o $(TOOLS)/differential-controllers ./test/differential/controllers
	@$(TOOLS)/differential-controllers -upstream "$$(hack/reference-component $(TOOLS)/reference kube-controller-manager)" $(ARGS) 2>$(CACHE)/differential-controllers.log

nightly: build images ## the tests that take too long for each change, with a table at the end: make nightly ONLY='mutants|fuzz'
	@hack/nightly $(ONLY)

clauses: ## list the clauses of a pod's life that users can see and no test cites
	@hack/clauses

bench: build images ## measure the whole against containerd + runc in one run, print one table
	@hack/deps containerd runc /usr/lib/cni/bridge
	$(GO) run ./test/bench -carob $(BIN)/carob -images $(CACHE)/images

bench-runtime: deps native ## container runtimes side by side at the CRI: carob's, containerd + runc, containerd + crun, and where carob's milliseconds go
	@hack/reference-runtimes $(TOOLS)/reference
	@$(GO) build -o $(TOOLS)/runtime-bench ./test/runtime-bench
	$(TOOLS)/runtime-bench -programs $(TOOLS)/reference -images $(CACHE)/images

bench-workloads: native ## many Deployments on simulated nodes, in one process: make bench-workloads BENCH='-deployments 50 -replicas 1'
	@$(GO) build -o $(TOOLS)/bench-workloads ./test/bench/workloads
	@$(TOOLS)/bench-workloads $(BENCH)

bench-node: build images ## volumes, idle pods, probes, files of config maps, /metrics/cadvisor: make bench-node BENCH='-only exec,http'
	@$(GO) build -o $(TOOLS)/bench-node ./test/bench/node
	@$(TOOLS)/bench-node -carob $(BIN)/carob -images $(CACHE)/images $(BENCH)

bench-scheduler: native ## carob's scheduler and upstream's on the same 5,000 simulated nodes, in one run: make bench-scheduler BENCH='-nodes 500 -cases basic'
	@$(GO) build -o $(TOOLS)/bench-scheduler ./test/bench/scheduler
	@$(TOOLS)/bench-scheduler -upstream "$$(hack/reference-component $(TOOLS)/reference kube-scheduler)" $(BENCH)

clean: ## remove what was built (never a data directory)
	rm -rf $(BIN) $(CACHE) dist
	@$(MAKE) --no-print-directory -C $(NATIVE) clean
