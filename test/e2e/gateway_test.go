package e2e

import (
	"errors"
	"strings"
	"testing"
)

// routed is an Ingress and a Gateway that lead to the web servers of lossless.
const routed = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  rules: [{http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: carob, listeners: [{name: http, port: 8080, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec: {parentRefs: [{name: web}], rules: [{backendRefs: [{name: web, port: 80}]}]}
`

// TestNoRequestIsLostThroughTheGateway replaces all pods behind an Ingress and an HTTPRoute under load: no request
// fails (N8.13). The statuses have the addresses where they are served.
func TestNoRequestIsLostThroughTheGateway(t *testing.T) {
	c := startCluster(t, "--gateway-http", "127.77.9.1:8080", "--gateway-addresses", "127.77.9.2", "--registry-config",
		mirrors.dir)
	r := rollouts{c, t, "lossless"}
	c.kubectl(t, "create", "namespace", r.namespace)
	c.acceptGateways(t)
	c.kubectlIn(t, lossless, "-n", r.namespace, "apply", "-f", "-")
	c.kubectlIn(t, routed, "-n", r.namespace, "apply", "-f", "-")
	r.rolledOut()
	r.do("wait", "--for=condition=Programmed", "--timeout="+patience.String(), "gateway/web")
	r.do("wait", "--for=jsonpath={.status.loadBalancer.ingress[0].ip}=127.77.9.1", "--timeout="+patience.String(),
		"ingress/web")
	r.do("wait", "--for=jsonpath={.status.parents[0].conditions[0].status}=True", "--timeout="+patience.String(),
		"httproute/web")
	all := []*traffic{
		send("new connections to the Ingress", "http://127.77.9.1:8080/", 4, false),
		send("kept connections to the Ingress", "http://127.77.9.1:8080/", 4, true),
		send("new connections to the Gateway", "http://127.77.9.2:8080/", 4, false),
		send("kept connections to the Gateway", "http://127.77.9.2:8080/", 4, true),
	}
	r.do("rollout", "restart", "deployment/web")
	r.rolledOut()
	var errs []error
	for _, x := range all {
		errs = append(errs, x.end())
		if x.sent.Load() < 100 {
			t.Errorf("%s: only %d requests", x.name, x.sent.Load())
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	shown := c.carob(t, "routes", "-n", r.namespace)
	for _, want := range []string{"127.77.9.1:8080", "ingress/web", "127.77.9.2:8080", "httproute/web", "web:80"} {
		if !strings.Contains(shown, want) {
			t.Errorf("carob routes does not show %s:\n%s", want, shown)
		}
	}
}
