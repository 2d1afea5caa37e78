package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// inferenceDocument has the three manifests of the document about inference routing, as they stand there.
const inferenceDocument = `
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata:
  name: inferencemodel-llama2
spec:
  modelName: llama2
  criticality: Critical
  poolRef:
    name: vllm-llama2-7b-pool
  targetModels:
    - name: vllm-llama2-7b-2024-11-20
      weight: 75
    - name: vllm-llama2-7b-2025-03-24
      weight: 25
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferencePool
metadata:
  name: vllm-llama2-7b-pool
spec:
  targetPortNumber: 8000
  selector:
    app: vllm-llama2-7b
  extensionRef:
    name: vllm-llama2-7b-endpoint-picker
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: llm-route
spec:
  parentRefs:
    - name: inference-gateway
  rules:
    - backendRefs:
        - group: inference.networking.x-k8s.io
          kind: InferencePool
          name: vllm-llama2-7b
      matches:
        - path:
            type: PathPrefix
            value: /
`

// inferenceServers are what the document takes for granted: a Gateway and model servers.
const inferenceServers = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: inference-gateway}
spec: {gatewayClassName: carob, listeners: [{name: http, port: 8080, protocol: HTTP}]}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: spare}
spec: {modelName: spare, criticality: Sheddable, poolRef: {name: vllm-llama2-7b-pool}}
---
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: vllm-llama2-7b}}
spec:
  containers:
  - name: server
    image: localhost/modelserver:1
    readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1}
`

// TestInferenceDocument applies the document's manifests as they stand (D1 to D5). Its route refers to a pool that does
// not exist; the status names the likely one. With that name, requests for the model reach the two versions by their
// weights, and while the server is full, critical requests are served and sheddable ones are not.
func TestInferenceDocument(t *testing.T) {
	t.Parallel()
	const at = "http://127.77.9.3:8080"
	c := startCluster(t, "--gateway-http", "127.77.9.3:8080")
	c.carob(t, "image", "import", filepath.Join(os.Getenv("IMAGES"), "modelserver.tar"))
	c.acceptGateways(t)
	contains(t, "addon", c.carob(t, "addon", "enable", "inference"), "addon/inference enabled")
	c.kubectlIn(t, inferenceDocument, "apply", "-f", "-")
	c.kubectlIn(t, inferenceServers, "apply", "-f", "-")
	c.kubectl(t, "wait", "--for=condition=Ready", "--timeout="+patience.String(), "pod/server")
	resolved := `jsonpath={.status.parents[0].conditions[?(@.type=="ResolvedRefs")].`
	c.kubectl(t, "wait", "--for="+resolved+`reason}=BackendNotFound`, "--timeout="+patience.String(),
		"httproute/llm-route")
	contains(t, "the status", c.kubectl(t, "get", "httproute/llm-route", "-o", resolved+"message}"),
		`did you mean "vllm-llama2-7b-pool"?`)
	contains(t, "explain", c.explain("httproute/llm-route"), `! Gateway inference-gateway: ResolvedRefs is false: `)
	contains(t, "explain", c.explain("inferencepool/vllm-llama2-7b-pool"), "! no Gateway of carob serves it")
	contains(t, "explain", c.explain("pod/server"), "  runs on node ")
	c.kubectl(t, "patch", "httproute/llm-route", "--type=json", "-p",
		`[{"op":"replace","path":"/spec/rules/0/backendRefs/0/name","value":"vllm-llama2-7b-pool"}]`)
	c.kubectl(t, "wait", "--for="+resolved+`status}=True`, "--timeout="+patience.String(), "httproute/llm-route")
	c.kubectl(t, "wait", `--for=jsonpath={.status.parent[0].parentRef.name}=inference-gateway`,
		"--timeout="+patience.String(), "inferencepools.inference.networking.x-k8s.io/vllm-llama2-7b-pool")
	post := func(path, body string) (int, string, http.Header) {
		res, err := http.Post(at+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text), res.Header
	}
	until := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !done(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	until("a request is served", func() bool {
		status, _, _ := post("/v1/completions", `{"model":"llama2","prompt":"hello"}`)
		return status == 200
	})
	count := map[string]int{}
	for range 1000 {
		status, text, _ := post("/v1/completions", `{"model":"llama2","prompt":"hello"}`)
		var answer struct {
			Model string `json:"model"`
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || status != 200 {
			t.Fatalf("%d %s %v", status, text, err)
		}
		count[answer.Model]++
	}
	// 750 ± 6 standard deviations
	if old := count["vllm-llama2-7b-2024-11-20"]; len(count) != 2 || old < 668 || old > 832 {
		t.Errorf("%v", count)
	}
	if status, text, _ := post("/waiting?n=100", ""); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	until("a sheddable request is refused", func() bool {
		status, _, h := post("/v1/completions", `{"model":"spare","prompt":"hello"}`)
		return status == 429 && h.Get("X-Llm-D-Request-Dropped-Reason") == "rejected-saturated"
	})
	contains(t, "explain", c.explain("inferencepool/vllm-llama2-7b-pool", "--model", "other"), "  1 ready server takes ",
		"! saturated", "  server server: ", "! model other: no InferenceModel has this name")
	if status, text, _ := post("/v1/completions", `{"model":"llama2","prompt":"hello"}`); status != 200 {
		t.Errorf("a critical request: %d %s", status, text)
	}
	c.kubectl(t, "delete", "httproute/llm-route")
	c.kubectl(t, "wait", `--for=jsonpath={.status.parent[0].parentRef.kind}=Status`, "--timeout="+patience.String(),
		"inferencepools.inference.networking.x-k8s.io/vllm-llama2-7b-pool")
	contains(t, "disable", c.carob(t, "addon", "disable", "inference"), "kept: 1 inferencepools, 2 inferencemodels")
}
