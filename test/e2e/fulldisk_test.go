package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/instance"
	"carob/internal/base/testwait"
)

// fill writes a file until the disk is full, and returns its path.
func (d *disk) fill(t *testing.T) string {
	t.Helper()
	path := filepath.Join(d.dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size >= 1; { // smaller and smaller pieces, until not one byte has room
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 16
		}
	}
	return path
}

// TestFullDiskUnderACluster: the data directory is on a disk that gets full while pods write to a volume and to their
// logs, an image is imported, and the API server stores objects. Everything says so, nothing is damaged, containers
// keep running, and all goes on when there is space again, also after kill -9 in that state.
func TestFullDiskUnderACluster(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "images and containers are on the disk")
	d := newDisk(t, 900<<20)
	c, err := newCluster(filepath.Join(d.dir, "data"), "--registry-config", mirrors.dir, "--eviction-hard",
		"memory.available<0%", "--image-gc-high-threshold", "100", "--image-gc-low-threshold", "99")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLog(t)
		}
		_ = os.Remove(filepath.Join(d.dir, "filler"))
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	c.kubectlIn(t, `apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, emptyDir: {}}]
  containers:
  - name: volume
    image: busybox:1.32.0
    volumeMounts: [{name: v, mountPath: /v}]
    command: [sh, -c, 'while :; do echo row >>/v/rows; sleep 1; done']
  - name: log
    image: busybox:1.32.0
    command: [sh, -c, 'while :; do seq 1 500; sleep 1; done']
`, "apply", "-f", "-")
	c.wait(t, "pod/writer", "condition=Ready")
	c.kubectl(t, "create", "configmap", "before", "--from-literal=a=b")

	full := d.fill(t)
	// Images are not imported, and the message names the cause.
	out, err := run(carobBin, "--data-dir", c.DataDir, "image", "import", filepath.Join(imageDir, "nginx.tar"))
	if err == nil {
		t.Errorf("an image was imported to a full disk: %s", out)
	} else {
		contains(t, "the import", err.Error(), "space")
	}
	// etcd has reserved space for some writes; then carob ends. Its log is on the same disk.
	var objects strings.Builder
	for i := range 200 {
		fmt.Fprintf(&objects, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: big-%d}\ndata: {v: %s}\n---\n", i,
			strings.Repeat("x", 900_000))
	}
	if _, err := c.tryKubectl(objects.String(), "create", "-f", "-"); err == nil {
		t.Error("180 MB were stored on a full disk")
	}
	testwait.Until(t, "carob ends, because it can store nothing", func() error {
		if o, ok, err := instance.Running(c.LockFile); err != nil || ok {
			return fmt.Errorf("it runs: %+v, %w", o, err)
		}
		return nil
	})
	contains(t, "a start on the full disk", carobFails(t, append([]string{"up", "--detach"}, c.args...)...), "MB left")

	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	c.recovered(t)

	// The same with a carob that is killed.
	full = d.fill(t)
	c.kill(t)
	contains(t, "a start on the full disk", carobFails(t, append([]string{"up", "--detach"}, c.args...)...), "MB left")
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	c.recovered(t)
}

// recovered starts carob after its disk was full, and requires all as it was.
func (c *cluster) recovered(t *testing.T) {
	t.Helper()
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	c.wait(t, "node/e2e-node", "condition=Ready")
	c.wait(t, "pod/writer", "condition=Ready")
	if s := c.pod(t, "writer").Status; s.Phase != corev1.PodRunning || s.ContainerStatuses[0].RestartCount != 0 ||
		s.ContainerStatuses[1].RestartCount != 0 {
		t.Errorf("the pod did not keep running: %+v", s)
	}
	if got := c.kubectl(t, "get", "configmap", "before", "-o", "jsonpath={.data.a}"); got != "b" {
		t.Errorf("the config map has %q", got)
	}
	c.carob(t, "image", "import", filepath.Join(imageDir, "nginx.tar"))
	c.kubectl(t, "run", "after", "--image=nginx:1.26")
	c.wait(t, "pod/after", "condition=Ready")
	c.kubectl(t, "delete", "pod", "after", "--grace-period=1")
	rows := c.kubectl(t, "exec", "writer", "-c", "volume", "--", "sh", "-c", "wc -l </v/rows")
	testwait.Until(t, "the volume can be written", func() error {
		if now := c.kubectl(t, "exec", "writer", "-c", "volume", "--", "sh", "-c", "wc -l </v/rows"); now == rows {
			return errors.New(now)
		}
		return nil
	})
	c.shows(t, []string{"500"}, "logs", "writer", "-c", "log", "--since=1s")
}
