# carob's build. `make help` lists the targets; README.md says which two a user needs.

export CGO_ENABLED = 0
export GOFLAGS = -buildvcs=false

GO        ?= go
BIN       := bin
CACHE     := .cache
KUBE      := v1.37.2
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS   := -s -w \
	-X main.version=$(VERSION) \
	-X k8s.io/component-base/version.gitVersion=$(KUBE) \
	-X k8s.io/component-base/version.gitMajor=1 \
	-X k8s.io/component-base/version.gitMinor=37 \
	-X k8s.io/component-base/version.gitTreeState=clean
PKGS      := ./cmd/... ./internal/...
SOURCES   := $(shell find cmd internal -name '*.go') go.mod go.sum
NATIVE    := internal/runtime/native/csrc

.DEFAULT_GOAL := help
.PHONY: help deps build native images run test unit e2e check fmt lint generate generate-check bench bench-runtime sim fuzz cross clean

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
	$(GO) build -ldflags '$(LDFLAGS)' -o $@ ./cmd/carob
	@ln -sf carob $(BIN)/kubectl

images: deps ## build the test images from Debian packages and our own programs
	$(GO) run ./test/images -out $(CACHE)/images

run: build ## start a cluster, show the life of a pod, leave the cluster up
	@hack/run

test: build images ## everything: vet, unit tests, simulator, end to end on real containers
	$(GO) vet $(PKGS)
	$(GO) test $(PKGS)
	$(MAKE) --no-print-directory e2e

unit: native ## unit tests only
	$(GO) test $(PKGS)

e2e: build images ## end to end: real kubectl, real containers (needs root)
	@hack/deps containerd runc /usr/lib/cni/bridge
	CAROB=$(CURDIR)/$(BIN)/carob IMAGES=$(CURDIR)/$(CACHE)/images $(GO) test -v -count=1 -timeout 30m ./test/e2e

bench: build images ## measure the whole against containerd + runc in one run, print one table
	@hack/deps containerd runc /usr/lib/cni/bridge
	$(GO) run ./test/bench -carob $(BIN)/carob -images $(CACHE)/images

clean: ## remove what was built (never a data directory)
	rm -rf $(BIN) $(CACHE) dist
	@$(MAKE) --no-print-directory -C $(NATIVE) clean
