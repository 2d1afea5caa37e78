//go:build tools

package gatewayconformance

import (
	_ "sigs.k8s.io/gateway-api-inference-extension/cmd/lwepp" // an image is made of it
	_ "sigs.k8s.io/gateway-api/conformance/echo-basic"
)
