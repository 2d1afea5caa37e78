package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"carob/internal/base/tasks"
	"carob/internal/base/testwait"
)

// pressure waits for a condition of the node and its taint.
func (c *cluster) pressure(t *testing.T, condition, taint string, want bool) {
	t.Helper()
	status, taints := "False", ""
	if want {
		status, taints = "True", "NoSchedule"
	}
	c.wait(t, "node/e2e-node", fmt.Sprintf("jsonpath={.status.conditions[?(@.type==%q)].status}=%s", condition, status))
	testwait.Until(t, "the taint "+taint, func() error {
		out, err := c.tryKubectl("", "get", "node", "e2e-node", "-o",
			fmt.Sprintf("jsonpath={.spec.taints[?(@.key==%q)].effect}", taint))
		if err == nil && out != taints {
			err = errors.New(out)
		}
		return err
	})
}

// TestPressure: a pod that uses up the node's process IDs, and one that uses up the inodes of its disk, are evicted,
// and no other; the node reports the pressure, admits no pod meanwhile, and recovers (L7.146–L7.150, S15.31).
func TestPressure(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "containers are on the disk")
	d := newDisk(t, 900<<20)
	now, err := tasks.Read()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(tempDir(t), "kubelet.yaml")
	// Other programs of the machine may start some processes, too, and the pod may not start as many as it likes.
	writeFile(t, config, fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {pid.available: "%d", nodefs.inodesFree: 50%%}
evictionPressureTransitionPeriod: 1m
`, now.Limit-now.Running-1000))
	c, err := newCluster(filepath.Join(d.dir, "data"), "--registry-config", mirrors.dir, "--kubelet-config", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLog(t)
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	start := func(name, node, command string) {
		t.Helper()
		c.kubectlIn(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: %q
  tolerations: [{operator: Exists}]
  volumes: [{name: v, emptyDir: {}}]
  containers: [{name: c, image: 'busybox:1.32.0', volumeMounts: [{name: v, mountPath: /v}], command: [sh, -c, %q]}]
`, name, node, command), "apply", "-f", "-")
	}
	start("modest", "", "sleep 3600")
	c.wait(t, "pod/modest", "condition=Ready")
	for _, x := range []struct{ pod, command, condition, taint, resource string }{
		{"forks", "i=0; while [ $i -lt 2000 ]; do sleep 3600 & i=$((i+1)); done; wait", "PIDPressure",
			"node.kubernetes.io/pid-pressure", "pids"},
		{"files", "mkdir /v/d; seq 1 40000 | (cd /v/d; xargs touch); sleep 3600", "DiskPressure",
			"node.kubernetes.io/disk-pressure", "inodes"},
	} {
		c.pressure(t, x.condition, x.taint, false)
		start(x.pod, "", x.command)
		c.waitEvent(t, x.pod, "Evicted")
		c.wait(t, "pod/"+x.pod, "jsonpath={.status.phase}=Failed")
		p := c.pod(t, x.pod)
		if p.Status.Reason != "Evicted" {
			t.Errorf("%s: %+v", x.pod, p.Status)
		}
		contains(t, x.pod, p.Status.Message, "The node was low on resource: "+x.resource+". ")
		c.hasEvents(t, "e2e-node", "Warning EvictionThresholdMet Attempting to reclaim "+x.resource)
		c.pressure(t, x.condition, x.taint, true)
		start("late-"+x.pod, "e2e-node", "sleep 3600")
		c.wait(t, "pod/late-"+x.pod, "jsonpath={.status.phase}=Failed")
		if s := c.pod(t, "late-"+x.pod).Status; s.Reason != "Evicted" ||
			s.Message != fmt.Sprintf("Pod was rejected: The node had condition: [%s]. ", x.condition) {
			t.Errorf("late-%s: %s: %q", x.pod, s.Reason, s.Message)
		}
		c.pressure(t, x.condition, x.taint, false)
		c.kubectl(t, "run", "after-"+x.pod, "--image=busybox:1.32.0", "--", "sleep", "3600")
		c.wait(t, "pod/after-"+x.pod, "condition=Ready")
	}
	if s := c.pod(t, "modest").Status.ContainerStatuses[0]; s.RestartCount != 0 || s.State.Running == nil {
		t.Errorf("modest: %+v", s)
	}
}
