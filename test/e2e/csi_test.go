package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carob/internal/base/testwait"
	"carob/test/csidriver"
)

// startCSI starts a CSI driver on a node, and ends it with the test.
func startCSI(t *testing.T, c *cluster) (*csidriver.Driver, string) {
	t.Helper()
	name := fmt.Sprintf("csi-%d.example.com", os.Getpid())
	d, err := csidriver.Start(csidriver.Config{Name: name, Node: c.NodeName, KubeletDir: c.KubeletDir,
		Data: filepath.Join(tempDir(t), "volumes"), Limit: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	return d, name
}

// Volumes of a CSI driver on a real cluster: files with a group, a block device, and an inline volume, which survive
// kill -9 of carob, are attached before they are used, and leave nothing behind.
func TestCSI(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "volumes are mounted by the agent")
	c := startCluster(t, "--registry-config", mirrors.dir)
	d, name := startCSI(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	attached := make(chan error, 1)
	go func() { attached <- d.Attach(ctx, c.Kubeconfig) }()
	defer func() {
		cancel()
		if err := <-attached; err != nil {
			t.Error(err)
		}
	}()
	for volume, block := range map[string]bool{"files": false, "raw": true} {
		if err := d.Make(volume, block, 10<<20); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(manifest("csi"))
	if err != nil {
		t.Fatal(err)
	}
	c.kubectlIn(t, strings.ReplaceAll(string(text), "DRIVER", name), "apply", "-f", "-")
	for _, pod := range []string{"files", "raw", "inline"} {
		c.wait(t, "pod/"+pod, "condition=Ready")
	}
	c.shows(t, []string{name, "8"}, "get", "csinode", c.NodeName, "-o",
		"jsonpath={.spec.drivers[0].name} {.spec.drivers[0].allocatable.count}")
	c.waitEvent(t, "files", "SuccessfulAttachVolume")
	if got := c.kubectl(t, "exec", "files", "--", "stat", "-c", "%g %a", "/data"); !strings.HasPrefix(got, "2000 277") {
		t.Errorf("the volume's group and mode are %q", got)
	}
	if got := c.kubectl(t, "exec", "raw", "--", "head", "-c", "4", "/dev/raw"); got != "raw\n" {
		t.Errorf("the block device shows %q", got)
	}
	for _, call := range d.Calls("NodePublishVolume") {
		if p, ok := call.Request.(interface {
			GetVolumeContext() map[string]string
		}); !ok || p.GetVolumeContext()["csi.storage.k8s.io/pod.namespace"] != "default" {
			t.Errorf("published without the pod's information: %v", call.Request)
		}
	}
	for _, metric := range []string{"kubelet_volume_stats_capacity_bytes", "csi_operations_seconds_count"} {
		if got := c.kubectl(t, "get", "--raw", "/api/v1/nodes/"+c.NodeName+"/proxy/metrics"); !strings.Contains(got,
			metric+"{") {
			t.Errorf("no %s", metric)
		}
	}

	c.kill(t)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []string{"files", "raw", "inline"} {
		c.wait(t, "pod/"+pod, "condition=Ready")
		if p := c.pod(t, pod); p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s was restarted", pod)
		}
	}
	if got := c.kubectl(t, "exec", "files", "--", "cat", "/data/rows"); got != "row\n" {
		t.Errorf("the volume has %q", got)
	}
	c.expandOnNode(t, d, strings.ReplaceAll(string(text), "DRIVER", name))
	c.kubectl(t, "delete", "pod", "files", "raw", "inline")
	c.gone(t, "volumeattachments")
	testwait.Until(t, "the driver has nothing staged", func() error {
		if n := d.Staged(); n != 0 {
			return fmt.Errorf("%d volumes are staged: %s", n, d.Names())
		}
		return nil
	})
	rows, err := os.ReadFile(filepath.Join(d.Path("files"), "rows"))
	if err != nil || string(rows) != "row\nrow\n" {
		t.Errorf("the data is %q, %v", rows, err)
	}
	left, _ := filepath.Glob(filepath.Join(c.KubeletDir, "pods", "*"))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// expandOnNode does what the resizer of a driver does when a user requests more: the driver enlarges the volume on the
// node when a pod with it starts, and the node writes the claim's new size.
func (c *cluster) expandOnNode(t *testing.T, d *csidriver.Driver, objects string) {
	t.Helper()
	c.kubectl(t, "patch", "pvc", "files", "-p", `{"spec":{"resources":{"requests":{"storage":"20Mi"}}}}`)
	c.kubectl(t, "patch", "pv", "csi-files", "-p", `{"spec":{"capacity":{"storage":"20Mi"}}}`)
	c.kubectl(t, "patch", "pvc", "files", "--subresource", "status", "-p", `{"status":{"allocatedResources":{"storage":`+
		`"20Mi"},"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`)
	c.kubectl(t, "delete", "pod", "files")
	for object := range strings.SplitSeq(objects, "---\n") {
		if strings.HasPrefix(object, "apiVersion: v1\nkind: Pod\nmetadata: {name: files}") {
			c.kubectlIn(t, object, "apply", "-f", "-")
		}
	}
	c.wait(t, "pod/files", "condition=Ready")
	c.shows(t, []string{"20Mi", ""}, "get", "pvc", "files", "-o",
		"jsonpath={.status.capacity.storage} {.status.allocatedResourceStatuses.storage}")
	if got := d.Names("NodeExpandVolume"); got != "NodeExpandVolume" {
		t.Errorf("calls for the new size: %q", got)
	}
}
