package e2e

import (
	"strings"
	"testing"
)

// The add-on for snapshots: its kinds and its controller, which is an ordinary Deployment; disabled, the controller
// goes and what users made stays; purged, all goes. (TestSidecars makes snapshots.)
func TestSnapshotsAddon(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	controller := []string{"get", "deployment", "-n", "kube-system", "snapshot-controller", "-o",
		"jsonpath={.spec.template.spec.containers[0].image}"}
	contains(t, "addon enable", c.carob(t, "addon", "enable", "snapshots"), "addon/snapshots enabled")
	contains(t, "addon enable, again", c.carob(t, "addon", "enable", "snapshots"), "addon/snapshots unchanged")
	contains(t, "the controller", c.kubectl(t, controller...), "sig-storage/snapshot-controller:v")
	c.kubectlIn(t, `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: fast}
driver: csi.example.com
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: snap}
spec:
  volumeSnapshotClassName: fast
  source: {persistentVolumeClaimName: data}
`, "apply", "-f", "-")
	can := func(account, verb, what string) string {
		out, _ := c.tryKubectl("", "auth", "can-i", verb, what, "--as", "system:serviceaccount:"+account)
		return strings.TrimSpace(out)
	}
	if got := can("kube-system:snapshot-controller", "update", "volumesnapshots/status"); got != "yes" {
		t.Errorf("the controller may write the status of snapshots: %q", got)
	}
	c.kubectl(t, "create", "rolebinding", "editor", "--clusterrole=edit", "--serviceaccount=default:editor")
	if got := can("default:editor", "create", "volumesnapshots"); got != "yes" {
		t.Errorf("an editor may make snapshots: %q", got)
	}
	contains(t, "addon disable", c.carob(t, "addon", "disable", "snapshots"), "addon/snapshots disabled\n"+
		"kept: 1 volumesnapshots, 1 volumesnapshotclasses")
	contains(t, "the controller of a disabled add-on", c.kubectlFails(t, controller...), "not found")
	c.kubectl(t, "get", "volumesnapshot", "snap")
	contains(t, "addon enable after disable", c.carob(t, "addon", "enable", "snapshots"), "addon/snapshots enabled")
	c.kubectl(t, controller...)
	contains(t, "addon disable --purge", c.carob(t, "addon", "disable", "snapshots", "--purge"),
		"addon/snapshots purged")
	contains(t, "the controller of a purged add-on", c.kubectlFails(t, controller...), "not found")
	if out := c.kubectl(t, "get", "crd", "-o", "name"); strings.Contains(out, "snapshot") {
		t.Errorf("definitions after a purge: %s", out)
	}
}
