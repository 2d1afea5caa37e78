package build

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// gatewaySuite is the module of the Gateway API's conformance suite, which its programs are built from.
const gatewaySuite = "test/gateway-conformance"

// gateway are the images that the Gateway API's conformance suite pulls, under its names. Only `make
// conformance-gateway` makes them, because they need the sources of that suite.
var gateway = []image{
	{name: "echo-basic", refs: append(
		tags("registry.k8s.io/gateway-api/echo-basic", "v1.5.1", "v1.6.0-dev.2", "v1.6.0-dev.3"),
		"gcr.io/k8s-staging-gateway-api/echo-basic:v20251106-v1.3.0-263-g47c3435c"), make: echoBasic},
	{name: "coredns", refs: tags("registry.k8s.io/coredns/coredns", "v1.12.2"), make: coreDNS},
	{name: "lwepp", refs: tags("registry.k8s.io/gateway-api-inference-extension/lwepp", "v1.6.0"), make: endpointPicker},
}

// endpointPicker is the endpoint picker of the inference extension's suite: it picks the endpoint that the test names.
func endpointPicker(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	dir, err := moduleDir(ctx, gatewaySuite)
	if err != nil {
		return nil, err
	}
	program, err := b.compile(ctx, dir, "sigs.k8s.io/gateway-api-inference-extension/cmd/lwepp")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("lwepp", 0o755, program)
	c.Entrypoint, c.User = []string{"/lwepp"}, "65532:65532"
	return []*layer{{tree: t}}, nil
}

// coreDNSModule is CoreDNS as hack/bench-network builds it. The suite queries only one name.
const coreDNSModule = "github.com/coredns/coredns@v1.15.0"

// coreDNS is the DNS server that the suite's UDPRoutes lead to. Nothing of it is in a module of carob's; a machine
// builds it once, which takes minutes.
func coreDNS(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	built := filepath.Join(b.Dir, "..", "tools", "reference", "coredns") // hack/bench-network has it there, too
	program, err := os.ReadFile(built)
	if errors.Is(err, fs.ErrNotExist) {
		if program, err = b.compileModule(ctx, coreDNSModule); err == nil {
			err = writeProgram(built, program)
		}
	}
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("coredns", 0o755, program)
	c.Entrypoint = []string{"/coredns"}
	return []*layer{{tree: t}}, nil
}

// compileModule builds the program of a module of others, PATH@VERSION.
func (b *Builder) compileModule(ctx context.Context, module string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "module-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, args := range [][]string{{"mod", "init", "build"}, {"get", module}} {
		if _, err := run(ctx, dir, "go", args...); err != nil {
			return nil, err
		}
	}
	path, _, _ := strings.Cut(module, "@")
	return b.compile(ctx, dir, path)
}

// writeProgram stores a program.
func writeProgram(path string, program []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", program, 0o755); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// echoBasic answers requests with what it received, over HTTP, HTTPS, h2c, gRPC, TCP, and UDP.
func echoBasic(ctx context.Context, b *Builder, c *ocispec.ImageConfig) ([]*layer, error) {
	dir, err := moduleDir(ctx, gatewaySuite)
	if err != nil {
		return nil, err
	}
	program, err := b.compile(ctx, dir, "sigs.k8s.io/gateway-api/conformance/echo-basic")
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("echo-basic", 0o755, program)
	c.Entrypoint, c.User = []string{"/echo-basic"}, "65532:65532"
	return []*layer{{tree: t}}, nil
}
