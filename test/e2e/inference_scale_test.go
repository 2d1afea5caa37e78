package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const inferenceScale = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: g}
spec: {gatewayClassName: carob, listeners: [{name: http, port: 8080, protocol: HTTP}]}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llm}
spec: {selector: {matchLabels: {app: llm}}, targetPorts: [{number: 8000}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: llm}
spec:
  parentRefs: [{name: g}]
  rules:
  - backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llm}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: server
        image: localhost/modelserver:1
        args: [-loading=1s]
        readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1}
`

const inferenceAutoscaler = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llm}
  minReplicas: 0
  maxReplicas: 3
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  metrics:
  - type: External
    external:
      metric: {name: inference_pool_requests, selector: {matchLabels: {name: llm}}}
      target: {type: AverageValue, averageValue: "1"}
`

// An autoscaler on the metrics of carob's picker ends the last model server when there are no requests, and starts
// servers for requests, which wait for them. INFERENCE_SCALE=1 runs it: autoscalers run every 15 seconds.
func TestInferenceScalesFromZero(t *testing.T) {
	if os.Getenv("INFERENCE_SCALE") == "" {
		t.Skip("INFERENCE_SCALE is not set")
	}
	const at = "http://127.77.9.4:8080/v1/completions"
	c := startCluster(t, "--gateway-http", "127.77.9.4:8080")
	c.carob(t, "image", "import", filepath.Join(os.Getenv("IMAGES"), "modelserver.tar"))
	c.acceptGateways(t)
	if text, err := c.tryKubectl("", "get", "--raw", "/apis/external.metrics.k8s.io"); err == nil {
		t.Errorf("external metrics are served without a pool: %s", text)
	}
	c.carob(t, "addon", "enable", "inference")
	c.kubectlIn(t, inferenceScale, "apply", "-f", "-")
	post := func() (int, string) {
		res, err := http.Post(at, "application/json", strings.NewReader(`{"model":"m","prompt":"hello"}`))
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		status, text := post()
		if status == 200 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("never served: %d %s", status, text)
		}
	}
	contains(t, "the metrics", c.kubectl(t, "get", "--raw", "/apis/external.metrics.k8s.io/v1beta1"),
		"inference_pool_average_kv_cache_utilization")
	c.kubectlIn(t, inferenceAutoscaler, "apply", "-f", "-")
	c.kubectl(t, "wait", "--for=jsonpath={.spec.replicas}=0", "--timeout="+patience.String(), "deployment/llm")
	c.kubectl(t, "wait", "--for=delete", "--timeout="+patience.String(), "pod", "-l", "app=llm")
	const n = 3
	done := make(chan struct{}, n)
	for range n {
		go func() {
			if status, text := post(); status != 200 {
				t.Errorf("a request that waited: %d %s", status, text)
			}
			done <- struct{}{}
		}()
	}
	c.kubectl(t, "wait", "--for=jsonpath={.spec.replicas}=3", "--timeout="+patience.String(), "deployment/llm")
	for range n {
		<-done
	}
	contains(t, "the autoscaler", c.kubectl(t, "get", "hpa/llm"), "Deployment/llm")
}
