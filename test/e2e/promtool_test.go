package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// lintedNames are promtool's complaints about upstream's names, which can't be changed.
var lintedNames = map[string]bool{
	"authenticated_user_requests": true, "authentication_attempts": true,
	"kubeproxy_sync_proxy_rules_no_local_endpoints_total": true,
	"kubelet_topology_manager_admission_duration_ms":      true,
}

// Prometheus' own tool finds no problem in carob's metrics, except for upstream's names. PROMTOOL
// names the tool; without it, or one on the path, the test is skipped.
func TestPromtool(t *testing.T) {
	tool := os.Getenv("PROMTOOL")
	if tool == "" {
		var err error
		if tool, err = exec.LookPath("promtool"); err != nil {
			t.Skip("there is no promtool: apt-get install prometheus, or set PROMTOOL")
		}
	}
	c := shared
	c.remove(t, "measured")
	c.kubectlIn(t, `
apiVersion: v1
kind: Pod
metadata: {name: measured}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox
    command: [sleep, "3600"]
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
`, "apply", "-f", "-")
	c.wait(t, "pod/measured", "condition=Ready")
	node := "/api/v1/nodes/" + c.pod(t, "measured").Spec.NodeName + "/proxy/metrics"
	for _, path := range []string{"/metrics", "/metrics/slis", node, node + "/resource", node + "/cadvisor",
		node + "/probes"} {
		text := c.kubectl(t, "get", "--raw", path)
		if !strings.Contains(text, "# TYPE ") {
			t.Errorf("%s serves no metrics: %.100s", path, text)
		}
		cmd := exec.CommandContext(t.Context(), tool, "check", "metrics")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		problems := 0
		for line := range strings.Lines(string(out)) {
			problems++
			if name, _, _ := strings.Cut(line, " "); !lintedNames[name] {
				t.Errorf("%s: %s", path, line)
			}
		}
		if err != nil && problems == 0 {
			t.Errorf("%s: %v", path, err)
		}
	}
}
