package build

import (
	"context"

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
	{name: "lwepp", refs: tags("registry.k8s.io/gateway-api-inference-extension/lwepp", "v1.6.0"), make: endpointPicker},
}

// endpointPicker is the endpoint picker of the inference extension's suite: it picks what the test asks for.
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
