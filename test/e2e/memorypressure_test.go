package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// availableMemory is MemAvailable of the machine in bytes.
func availableMemory(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Fatal("the kernel does not report how much memory is available")
	return 0
}

// TestMemoryPressure: three pods use more memory than the threshold leaves. The one that is evicted is neither the one
// that uses most, because that one has requested it, nor the one that was started last, but the one with the lowest
// priority of those that use more than they requested. Then the threshold is met, and no other pod goes. Meanwhile the
// node admits no pod of the class BestEffort, but one that requests memory; after evictionPressureTransitionPeriod
// condition and taint go, and it admits all (L7.146–L7.150).
func TestMemoryPressure(t *testing.T) {
	nativeOnly(t, "the use of memory is measured in the same way")
	// Other programs of the machine may use or free one unit meanwhile.
	unit := availableMemory(t) / 32
	config := filepath.Join(tempDir(t), "kubelet.yaml")
	writeFile(t, config, fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {memory.available: "%d"}
evictionPressureTransitionPeriod: 30s
`, availableMemory(t)-15*unit/2))
	c := startCluster(t, "--registry-config", mirrors.dir, "--kubelet-config", config)
	start := func(name, priority string, request, use int64) {
		t.Helper()
		c.kubectlIn(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: e2e-node
  priorityClassName: %q
  volumes: [{name: v, emptyDir: {medium: Memory}}]
  containers:
  - name: c
    image: busybox:1.32.0
    volumeMounts: [{name: v, mountPath: /v}]
    resources: {requests: {%s}}
    command: [sh, -c, 'head -c %d /dev/zero >/v/f; echo has all; exec sleep 3600']
`, name, priority, map[bool]string{true: fmt.Sprintf("memory: %d", request)}[request > 0], use), "apply", "-f", "-")
	}
	for name, value := range map[string]int{"low": -10, "high": 10} {
		c.kubectl(t, "create", "priorityclass", name, fmt.Sprintf("--value=%d", value))
	}
	c.pressure(t, "MemoryPressure", "node.kubernetes.io/memory-pressure", false)
	start("requested", "low", 5*unit, 4*unit)
	start("important", "high", 0, 2*unit)
	for _, name := range []string{"requested", "important"} {
		c.wait(t, "pod/"+name, "condition=Ready")
		c.shows(t, []string{"has all"}, "logs", name)
	}
	start("victim", "", 0, 3*unit)
	start("last", "", unit, 0)
	c.waitEvent(t, "victim", "Evicted")
	c.wait(t, "pod/victim", "jsonpath={.status.phase}=Failed")
	p := c.pod(t, "victim")
	contains(t, "the victim's message", p.Status.Message, "The node was low on resource: memory. Threshold quantity: ",
		"Container c was using ", "request is 0, has larger consumption of memory. ")
	if p.Status.Reason != "Evicted" {
		t.Errorf("victim: %+v", p.Status)
	}
	c.hasEvents(t, "e2e-node", "Warning EvictionThresholdMet Attempting to reclaim memory")
	c.pressure(t, "MemoryPressure", "node.kubernetes.io/memory-pressure", true)
	start("late", "high", 0, 0)
	start("modest", "low", unit/8, 0)
	c.wait(t, "pod/late", "jsonpath={.status.phase}=Failed")
	if s := c.pod(t, "late").Status; s.Reason != "Evicted" ||
		s.Message != "Pod was rejected: The node had condition: [MemoryPressure]. " {
		t.Errorf("late: %s: %q", s.Reason, s.Message)
	}
	c.wait(t, "pod/modest", "condition=Ready")
	c.pressure(t, "MemoryPressure", "node.kubernetes.io/memory-pressure", false)
	c.kubectl(t, "run", "after", "--image=busybox:1.32.0", "--", "sleep", "3600")
	c.wait(t, "pod/after", "condition=Ready")
	for _, name := range []string{"requested", "important", "last", "modest"} {
		if s := c.pod(t, name).Status; s.Phase != corev1.PodRunning || s.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	contains(t, "the metrics", c.kubectl(t, "get", "--raw", "/api/v1/nodes/e2e-node/proxy/metrics"),
		`kubelet_evictions{eviction_signal="memory.available"} 1`)
}
