package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carob/internal/base/instance"
	"carob/internal/base/testwait"
)

// TestReadOnlyDisk: the disk of the data directory turns read-only, as ext4 does when it finds an error. carob ends and
// says why; `carob down --pods` ends the pods, so that the disk can be unmounted and repaired; afterwards all goes on
// with the data that was stored.
func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "containers are on the disk")
	d := newDisk(t, 900<<20)
	c, err := newCluster(filepath.Join(d.dir, "data"), "--registry-config", mirrors.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			pod, _ := c.tryKubectl("", "describe", "pod", "writer")
			steps, _ := run(carobBin, "timeline", "pod/writer", "--data-dir", c.DataDir)
			t.Logf("%s\n%s", pod, steps)
			c.dumpLog(t)
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	c.kubectlIn(t, `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
  containers:
  - name: c
    image: busybox:1.32.0
    volumeMounts: [{name: v, mountPath: /v}]
    command: [sh, -c, 'echo started >>/v/starts; sync; exec sleep 3600']
`, "apply", "-f", "-")
	c.wait(t, "pod/writer", "condition=Ready")
	starts := func(want string) {
		t.Helper()
		testwait.Until(t, "the pod shows its starts", func() error {
			got, err := c.tryKubectl("", "exec", "writer", "--", "cat", "/v/starts")
			if err == nil && got != want {
				err = errors.New(got)
			}
			return err
		})
	}
	starts("started\n")

	device, err := run("findmnt", "-no", "SOURCE", d.dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run("mount", "-o", "remount,errors=remount-ro", d.dir); err != nil {
		t.Fatal(err)
	}
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(strings.TrimSpace(device)), "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("a test"), 0); err != nil {
		t.Skipf("this kernel cannot make an error of a file system: %v", err)
	}
	testwait.Until(t, "carob ends, because it can store nothing", func() error {
		if o, ok, err := instance.Running(c.LockFile); err != nil || ok {
			return fmt.Errorf("it runs: %+v, %w", o, err)
		}
		return nil
	})
	contains(t, "a start on the disk", carobFails(t, append([]string{"up", "--detach"}, c.args...)...),
		"read-only file system")
	contains(t, "the output of down", c.carob(t, "down", "--pods"), "all pods ended")

	d.unmount(t)                                                                       // nothing uses it
	if _, err := run("sh", "-c", "e2fsck -fp "+d.image+" || [ $? = 1 ]"); err != nil { // 1: errors were corrected
		t.Fatal(err)
	}
	if err := d.mount(); err != nil {
		t.Fatal(err)
	}
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	starts("started\nstarted\n")
	if n := c.pod(t, "writer").Status.ContainerStatuses[0].RestartCount; n != 1 {
		t.Errorf("%d restarts, want 1", n)
	}
	c.kubectl(t, "delete", "pod", "writer")
	c.kubectl(t, "delete", "pvc", "data")
	c.gone(t, "pv")
}
