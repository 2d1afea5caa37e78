package e2e

import (
	"strings"
	"testing"

	"carob/test/containerd"
)

// TestOnContainerd: the same cluster on an installed containerd and runc, by one flag.
func TestOnContainerd(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "one cluster on containerd beside those on carob's runtime")
	dir := tempDir(t)
	d, err := containerd.Start(t.Context(), dir, "cb-e2e-ctrd", "10.224.0.0/16", mirrors.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	c := startCluster(t, "--runtime-endpoint", d.Endpoint)
	contains(t, "node", c.kubectl(t, "get", "nodes", "-o", "wide"), "containerd://")
	contains(t, "import", carobFails(t, "--data-dir", c.DataDir, "image", "import", imageDir+"/bench.tar"),
		"another container runtime")

	c.kubectl(t, "run", "web", "--image=nginx", "--port=80")
	c.wait(t, "pod/web", "condition=Ready")
	contains(t, "page", get(t, "http://"+c.pod(t, "web").Status.PodIP), "nginx")
	if id := c.pod(t, "web").Status.ContainerStatuses[0].ContainerID; !strings.HasPrefix(id, "containerd://") {
		t.Errorf("containerID %s", id)
	}
	c.kubectl(t, "apply", "-f", manifest("verbs"))
	c.wait(t, "pod/verbs", "condition=Ready")
	if got := c.kubectl(t, "logs", "verbs", "-c", "two", "--tail=1"); got != "two 3\n" {
		t.Errorf("--tail=1 printed %q", got)
	}
	if got := c.kubectlIn(t, "a\nb\n", "exec", "-i", "verbs", "-c", "one", "--", "cat"); got != "a\nb\n" {
		t.Errorf("exec -i printed %q", got)
	}
	before := c.pod(t, "verbs").Status.ContainerStatuses[0].ContainerID
	c.kill(t)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	c.wait(t, "pod/verbs", "condition=Ready")
	if after := c.pod(t, "verbs").Status.ContainerStatuses[0]; after.ContainerID != before || after.RestartCount != 0 {
		t.Errorf("after carob was killed the container is %s with %d restarts, before it was %s", after.ContainerID,
			after.RestartCount, before)
	}
	c.kubectl(t, "delete", "pod", "verbs")
	contains(t, "get", c.kubectlFails(t, "get", "pod", "verbs"), "NotFound")
}
