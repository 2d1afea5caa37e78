package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// released waits until carob has no lock of this logind any more. Carob must have answered the last one's creation.
func (l *login) released(t *testing.T) {
	t.Helper()
	for i, f := range l.locks { // the reading end, the writing end
		if i%2 == 1 {
			_ = f.Close() // carob has its own
		}
	}
	for i, f := range l.locks {
		if i%2 == 0 {
			if _, err := io.ReadAll(f); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestShutdownWithPodsThatDoNotEnd: a shutdown of the machine waits no longer than its periods for pods whose preStop
// hook hangs, which ignore SIGTERM, or whose volume cannot be unmounted. Pods of a lower priority end first, all get
// the reason, and nothing of it hangs the start after the shutdown (L7.155, L7.156).
func TestShutdownWithPodsThatDoNotEnd(t *testing.T) {
	nativeOnly(t, "volumes are mounted by the agent")
	logind := startLogin(t)
	dir := tempDir(t)
	config := filepath.Join(dir, "kubelet.yaml")
	writeFile(t, config, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 4}
- {priority: 1000, shutdownGracePeriodSeconds: 3}
- {priority: 2000000000, shutdownGracePeriodSeconds: 5}
`)
	c := startCluster(t, "--registry-config", mirrors.dir, "--kubelet-config", config)
	driver, name := startCSI(t, c)
	hang, called := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(called) })
	driver.Fault(func(ctx context.Context, method string, _ any) error {
		if method == "NodeUnpublishVolume" {
			once()
			select {
			case <-hang:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	order := filepath.Join(dir, "order")
	if err := os.Mkdir(order, 0o777); err != nil {
		t.Fatal(err)
	}
	const ignores = `command: [sh, -c, 'trap "" TERM; while :; do sleep 1; done']`
	pod := func(name, spec, container string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n"+
			"  terminationGracePeriodSeconds: 3600\n  %s\n  containers: [{name: c, image: 'busybox:1.32.0', %s}]\n---\n",
			name, spec, container)
	}
	notes := func(name string) string { // writes when it gets SIGTERM, and ends
		return fmt.Sprintf(`volumeMounts: [{name: order, mountPath: /order}],
    command: [sh, -c, 'trap "echo %s >>/order/ended; exit 0" TERM; while :; do sleep 3600 & wait; done']`, name)
	}
	volume := fmt.Sprintf("volumes: [{name: order, hostPath: {path: %s}}]", order)
	c.kubectlIn(t, fmt.Sprintf(`apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: middle}
value: 1500
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: %s}
spec: {attachRequired: false, volumeLifecycleModes: [Ephemeral]}
---
`, name)+
		pod("hook", "priorityClassName: ''", `lifecycle: {preStop: {exec: {command: [sleep, '3600']}}}, `+ignores)+
		pod("no-term", "priorityClassName: middle", ignores)+
		pod("stuck", fmt.Sprintf("volumes: [{name: v, csi: {driver: %s}}]", name),
			`volumeMounts: [{name: v, mountPath: /v}],
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 3600 & wait; done']`)+
		pod("first", volume, notes("first"))+
		pod("second", "priorityClassName: middle\n  "+volume, notes("second"))+
		strings.Replace(pod("third", "priorityClassName: system-node-critical\n  "+volume, notes("third")),
			"{name: third}", "{name: third, namespace: kube-system}", 1), "apply", "-f", "-")
	for _, pod := range []string{"hook", "no-term", "stuck", "first", "second"} {
		c.wait(t, "pod/"+pod, "condition=Ready")
	}
	c.wait(t, "pod/third", "condition=Ready", "-n", "kube-system")
	<-logind.inhibits

	logind.emitShutdown(t, true)
	c.wait(t, "node/e2e-node", "condition=Ready=False") // carob has its lock
	logind.released(t)
	if text, err := os.ReadFile(filepath.Join(order, "ended")); err != nil || string(text) != "first\nsecond\nthird\n" {
		t.Errorf("the pods ended in the order %q, %v", text, err)
	}
	terminated := func(namespace, pod string) {
		t.Helper()
		c.wait(t, "pod/"+pod, "jsonpath={.status.reason}=Terminated", "-n", namespace)
		contains(t, pod, c.kubectl(t, "get", "pod", pod, "-n", namespace, "-o", "jsonpath={.status.message}"),
			"Pod was terminated in response to imminent node shutdown.")
	}
	all := []string{"hook", "no-term", "stuck", "first", "second"}
	for _, pod := range all {
		terminated("default", pod)
	}
	terminated("kube-system", "third")
	<-called // it was to be unmounted

	// The machine goes down before the volume is unmounted, and starts. The driver still hangs.
	c.machineStops(t, c.owner(t).PID)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	<-logind.inhibits // the next shutdown is delayed, too
	c.wait(t, "node/e2e-node", "condition=Ready")
	c.kubectl(t, "run", "next", "--image=busybox:1.32.0", "--", "sleep", "3600")
	c.wait(t, "pod/next", "condition=Ready")
	for _, pod := range all {
		c.wait(t, "pod/"+pod, "jsonpath={.status.phase}=Failed")
		terminated("default", pod)
	}
	close(hang)
	c.kubectl(t, append([]string{"delete", "pod"}, all...)...)
	for _, pod := range all {
		c.gone(t, "pod/"+pod)
	}
}
