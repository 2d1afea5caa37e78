package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"carob/internal/base/testwait"
	"carob/test/csidriver"
)

// sidecars is a directory with csi-provisioner, csi-attacher and csi-resizer, as hack/csi-sidecars builds them; and
// with csi-snapshotter, snapshot-controller and the CRDs of snapshots (crd), where they could be built.
var sidecars = os.Getenv("CAROB_CSI_SIDECARS")

// sidecar runs one of them until the test ends.
func (c *cluster) sidecar(t *testing.T, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(sidecars, name), append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "NODE_NAME="+c.NodeName, "NAMESPACE=default")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s: %s", name, tail(text, 4000))
		}
	})
}

// Upstream's sidecars work unchanged: a StatefulSet's claim is provisioned where there is room, attached, enlarged, and
// after kill -9 of carob still there; its snapshot becomes another volume; what is deleted is gone.
func TestSidecars(t *testing.T) {
	nativeOnly(t, "volumes are mounted by the agent")
	if sidecars == "" {
		t.Skip("CAROB_CSI_SIDECARS is not set: see hack/csi-sidecars")
	}
	c := startCluster(t, "--registry-config", mirrors.dir)
	d, name := startCSI(t, c)
	address := "--csi-address=" + d.Socket()
	c.sidecar(t, "csi-provisioner", address, "--feature-gates=Topology=true", "--enable-capacity",
		"--capacity-ownerref-level=-1", "--strict-topology", "--immediate-topology=false", "--extra-create-metadata",
		"--kube-api-qps=50", "--kube-api-burst=50")
	c.sidecar(t, "csi-attacher", address)
	c.sidecar(t, "csi-resizer", address)
	text, err := os.ReadFile(manifest("sidecars"))
	if err != nil {
		t.Fatal(err)
	}
	c.kubectlIn(t, strings.ReplaceAll(string(text), "DRIVER", name), "apply", "-f", "-")
	rows := func(pod string, want int) {
		t.Helper()
		testwait.Until(t, "the pod shows its rows", func() error {
			got, err := c.tryKubectl("", "exec", pod, "--", "cat", "/data/rows")
			if n := strings.Count(got, "row\n"); err != nil || n != want {
				return fmt.Errorf("%d rows, want %d (%q, %v)", n, want, got, err) //nolint:errorlint // err may be nil
			}
			return nil
		})
	}
	t.Cleanup(func() {
		if t.Failed() {
			events, err := c.tryKubectl("", "get", "events,pods,pvc,pv,volumeattachments,csistoragecapacities")
			t.Log(events, err)
		}
	})
	rows("db-0", 1)
	c.shows(t, []string{"csi"}, "get", "csistoragecapacities", "-o", "jsonpath={.items[*].storageClassName}")
	c.shows(t, []string{"true"}, "get", "volumeattachments", "-o", "jsonpath={.items[*].status.attached}")
	c.kill(t)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	rows("db-0", 1)
	c.kubectl(t, "delete", "pod", "db-0")
	rows("db-0", 2)

	c.kubectl(t, "patch", "pvc", "data-db-0", "-p", `{"spec":{"resources":{"requests":{"storage":"20Mi"}}}}`)
	testwait.Until(t, "the resizer hands over to the node", func() error {
		status, err := c.tryKubectl("", "get", "pvc", "data-db-0", "-o",
			"jsonpath={.status.allocatedResourceStatuses.storage}{.status.capacity.storage}")
		if err != nil || !strings.Contains(status, "NodeResize") && status != "20Mi" {
			return fmt.Errorf("%q, %v", status, err) //nolint:errorlint // err may be nil
		}
		return nil
	})
	c.kubectl(t, "delete", "pod", "db-0") // a start enlarges it at once, a look at a volume in use within a minute
	testwait.Until(t, "the claim has its new size", func() error {
		size, err := c.tryKubectl("", "get", "pvc", "data-db-0", "-o", "jsonpath={.status.capacity.storage}")
		if err != nil || size != "20Mi" {
			return fmt.Errorf("%q, %v", size, err) //nolint:errorlint // err may be nil
		}
		return nil
	})
	rows("db-0", 3)
	c.snapshot(t, d, name, address)

	c.kubectl(t, "delete", "statefulset", "db")
	c.kubectl(t, "delete", "pvc", "--all")
	c.gone(t, "persistentvolumes")
	c.gone(t, "volumeattachments")
	testwait.Until(t, "the driver has nothing any more", func() error {
		left, err := filepath.Glob(d.Path("vol-*"))
		if err != nil || len(left) > 0 || d.Staged() > 0 {
			return fmt.Errorf("left %v, staged %d, %v", left, d.Staged(), err) //nolint:errorlint // err may be nil
		}
		return nil
	})
}

// snapshot makes a snapshot of the set's volume and a volume of that, where the programs are there.
func (c *cluster) snapshot(t *testing.T, _ *csidriver.Driver, name, address string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(sidecars, "snapshot-controller")); errors.Is(err, os.ErrNotExist) {
		t.Log("no snapshot-controller: snapshots are not tested")
		return
	}
	c.kubectl(t, "apply", "-f", filepath.Join(sidecars, "crd"))
	c.sidecar(t, "snapshot-controller")
	c.sidecar(t, "csi-snapshotter", address)
	c.kubectlIn(t, `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: csi}
driver: `+name+`
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: snap}
spec: {volumeSnapshotClassName: csi, source: {persistentVolumeClaimName: data-db-0}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: restored}
spec:
  storageClassName: csi
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 20Mi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: snap}
---
apiVersion: v1
kind: Pod
metadata: {name: restored}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: busybox, command: [sleep, "1000"], volumeMounts: [{name: v, mountPath: /data}]}
  volumes: [{name: v, persistentVolumeClaim: {claimName: restored}}]
`, "apply", "-f", "-")
	c.wait(t, "pod/restored", "condition=Ready")
	if got := c.kubectl(t, "exec", "restored", "--", "cat", "/data/rows"); strings.Count(got, "row\n") != 3 {
		t.Errorf("the restored volume has %q", got)
	}
	c.kubectl(t, "delete", "pod", "restored")
	c.kubectl(t, "delete", "volumesnapshot", "snap")
}
