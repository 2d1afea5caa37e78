package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A container's resources change while it runs: the process stays, its cgroup, the
// pod's status and the events follow (L3.120, L3.122, L3.127). A resize for which the node lacks resources waits until
// a pod ends (L3.121, L3.123). A memory change restarts a container whose resize policy requires it (L3.126).
func TestResize(t *testing.T) {
	c := shared
	c.remove(t, "sized", "beside")
	c.kubectlIn(t, `
apiVersion: v1
kind: Pod
metadata: {name: sized}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox
    command: [sleep, "3600"]
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
`, "apply", "-f", "-")
	c.wait(t, "pod/sized", "condition=Ready")
	before := c.pod(t, "sized").Status.ContainerStatuses[0]
	resize := func(resources string) {
		t.Helper()
		c.kubectl(t, "patch", "pod", "sized", "--subresource=resize", "--patch",
			`{"spec":{"containers":[{"name":"c","resources":`+resources+`}]}}`)
	}
	cgroup := func(v2, v1 string) string {
		t.Helper()
		return strings.TrimSpace(c.kubectl(t, "exec", "sized", "--", "sh", "-c",
			"cat /sys/fs/cgroup/"+v2+" 2>/dev/null || cat /sys/fs/cgroup/"+v1))
	}

	resize(`{"requests":{"cpu":"200m"},"limits":{"cpu":"500m"}}`)
	c.wait(t, "pod/sized", "jsonpath={.status.containerStatuses[0].resources.limits.cpu}=500m")
	c.wait(t, "pod/sized", "jsonpath={.status.containerStatuses[0].allocatedResources.cpu}=200m")
	contains(t, "cpu limit in the container", cgroup("cpu.max", "cpu/cpu.cfs_quota_us"), "50000")
	after := c.pod(t, "sized").Status.ContainerStatuses[0]
	if after.ContainerID != before.ContainerID || after.RestartCount != 0 {
		t.Errorf("the container was restarted: %s, %d", after.ContainerID, after.RestartCount)
	}
	c.wait(t, "pod/sized", "jsonpath={.status.resources.limits.cpu}=500m")

	resize(`{"requests":{"memory":"48Mi"},"limits":{"memory":"96Mi"}}`)
	c.wait(t, "pod/sized", "jsonpath={.status.containerStatuses[0].restartCount}=1")
	c.wait(t, "pod/sized", "condition=Ready")
	contains(t, "memory limit in the container", cgroup("memory.max", "memory/memory.limit_in_bytes"), "100663296")

	c.kubectlIn(t, `
apiVersion: v1
kind: Pod
metadata: {name: beside}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: busybox, command: [sleep, "3600"], resources: {requests: {cpu: 100m}}}
`, "apply", "-f", "-")
	c.wait(t, "pod/beside", "condition=Ready")
	all := c.kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].status.allocatable.cpu}")
	resize(`{"requests":{"cpu":"` + all + `"},"limits":{"cpu":"` + all + `"}}`)
	c.wait(t, "pod/sized", "jsonpath={.status.conditions[?(@.type=='PodResizePending')].reason}=Deferred")
	c.kubectl(t, "delete", "pod", "beside")
	c.wait(t, "pod/sized", "jsonpath={.status.containerStatuses[0].allocatedResources.cpu}="+all)
	for _, condition := range c.pod(t, "sized").Status.Conditions {
		if condition.Type == corev1.PodResizePending {
			t.Errorf("condition %s: %s", condition.Type, condition.Message)
		}
	}
	c.hasEvents(t, "sized", "ResizeStarted Pod resize started: {", "ResizeCompleted Pod resize completed: {",
		"ResizeDeferred Pod resize OutOfcpu: {", "Killing Container c resize requires restart, will be restarted")
}

// TestResizeInitContainer: an init container is resized while it runs, without a restart,
// and the files that show its resources follow (L3.120, L3.135).
func TestResizeInitContainer(t *testing.T) {
	c := shared
	c.remove(t, "sized-first")
	c.kubectlIn(t, `
apiVersion: v1
kind: Pod
metadata: {name: sized-first}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - name: first
    image: busybox
    command: [sh, -c, "until [ -e /data/go ]; do sleep 0.1; done"]
    resources: {requests: {cpu: 100m}, limits: {cpu: 200m}}
    volumeMounts: [{name: data, mountPath: /data}, {name: info, mountPath: /info}]
  containers:
  - name: c
    image: busybox
    command: [sleep, "3600"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, emptyDir: {}}
  - name: info
    downwardAPI:
      items: [{path: limit, resourceFieldRef: {containerName: first, resource: limits.cpu, divisor: 1m}}]
`, "apply", "-f", "-")
	c.wait(t, "pod/sized-first", "jsonpath={.status.initContainerStatuses[0].state.running.startedAt}")
	inside := func(command string) string {
		t.Helper()
		return strings.TrimSpace(c.kubectl(t, "exec", "sized-first", "-c", "first", "--", "sh", "-c", command))
	}
	contains(t, "the limit in the file", inside("cat /info/limit"), "200")
	id := c.pod(t, "sized-first").Status.InitContainerStatuses[0].ContainerID
	c.kubectl(t, "patch", "pod", "sized-first", "--subresource=resize", "--patch",
		`{"spec":{"initContainers":[{"name":"first","resources":{"requests":{"cpu":"300m"},"limits":{"cpu":"500m"}}}]}}`)
	c.wait(t, "pod/sized-first", "jsonpath={.status.initContainerStatuses[0].resources.limits.cpu}=500m")
	c.wait(t, "pod/sized-first", "jsonpath={.status.initContainerStatuses[0].allocatedResources.cpu}=300m")
	contains(t, "cpu limit in the container",
		inside("cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"), "50000")
	contains(t, "the limit in the file", inside("until grep -q 500 /info/limit; do sleep 0.1; done; cat /info/limit"),
		"500")
	c.waitEvent(t, "sized-first", "ResizeCompleted")
	if st := c.pod(t, "sized-first").Status.InitContainerStatuses[0]; st.ContainerID != id || st.RestartCount != 0 {
		t.Errorf("the container was restarted: %s, %d", st.ContainerID, st.RestartCount)
	}
	inside("touch /data/go")
	c.wait(t, "pod/sized-first", "condition=Ready")
	c.kubectl(t, "delete", "pod", "sized-first")
}
