package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"carob/internal/base/testwait"
)

func pinnedPod(name, cpu, limits string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox:1.32.0
    command: [sleep, "3600"]
    resources: {requests: {cpu: %s, memory: 16Mi}, %s}
`, name, cpu, limits)
}

// A Guaranteed container gets CPUs and a NUMA node of its own, in the kernel; others leave these CPUs and come back.
// It keeps them when carob is killed, and can't be resized (S10.5 to S10.8, S10.22).
func TestPinnedCPUs(t *testing.T) {
	t.Parallel()
	cpus := runtime.NumCPU()
	if cpus < 2 {
		t.Skip("one CPU: nothing is left to give")
	}
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	err := os.WriteFile(file, []byte(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: "0"
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]
topologyManagerPolicy: restricted
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, "--registry-config", mirrors.dir, "--kubelet-config", file)
	last := fmt.Sprint(cpus - 1)
	// Of both forms that the kernel may write a list in, "0" and "0-0" are equal only for one CPU.
	allowed := func(pod, file string) string {
		t.Helper()
		out, err := c.tryKubectl("", "exec", pod, "--", "sed", "-n", "s/^"+file+":[ \t]*//p", "/proc/1/status")
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(out)
	}
	becomes := func(pod string, has func(string) bool) {
		t.Helper()
		testwait.Until(t, "the CPUs of "+pod, func() error {
			if got := allowed(pod, "Cpus_allowed_list"); !has(got) {
				return fmt.Errorf("it has %q", got)
			}
			return nil
		})
	}
	all := fmt.Sprintf("0-%d", cpus-1)
	c.kubectlIn(t, pinnedPod("shared", "0", "limits: {memory: 32Mi}"), "apply", "-f", "-")
	c.wait(t, "pod/shared", "condition=Ready")
	becomes("shared", func(s string) bool { return s == all })

	c.kubectlIn(t, pinnedPod("own", "1", "limits: {cpu: 1, memory: 16Mi}"), "apply", "-f", "-")
	c.wait(t, "pod/own", "condition=Ready")
	own := allowed("own", "Cpus_allowed_list")
	if own == "" || strings.ContainsAny(own, ",-") || own == "0" {
		t.Errorf("the container has CPUs %q, want one of 1 to %s", own, last)
	}
	if got := allowed("own", "Mems_allowed_list"); got != "0" {
		t.Errorf("the container has memory of node %q", got)
	}
	quota := strings.TrimSpace(c.kubectl(t, "exec", "own", "--", "sh", "-c",
		"cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
	if !strings.HasPrefix(quota, "max") && quota != "-1" {
		t.Errorf("its CPU time is limited to %s", quota)
	}
	c.wait(t, "pod/own", "jsonpath={.status.containerStatuses[0].resources.limits.cpu}=1")
	left := func(s string) bool { return s != all && s != own && s != "" && !strings.Contains(s, "rror") }
	becomes("shared", left)

	c.kubectl(t, "patch", "pod", "own", "--subresource=resize", "--patch",
		`{"spec":{"containers":[{"name":"c","resources":{"requests":{"memory":"32Mi"},"limits":{"memory":"32Mi"}}}]}}`)
	testwait.Until(t, "the resize is refused", func() error {
		out, err := c.tryKubectl("", "get", "pod", "own", "-o", "jsonpath={.status.conditions}")
		const want = `Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"`
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("conditions: %s", out)
		}
		return err
	})

	c.kill(t) // killed here
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	becomes("own", func(s string) bool { return s == own })
	becomes("shared", left)
	c.kubectl(t, "delete", "pod", "own", "--grace-period=1")
	becomes("shared", func(s string) bool { return s == all })
}
