package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/securepath"
	"carob/internal/node/remotedisk"
)

const iscsiTarget = "iqn.2026-11.com.example:disks"

// target is a machine as files on which a stand-in for iscsiadm logs in: its LUN 0 is a loop device.
type target struct {
	root   string
	device string // of the LUN
	t      *testing.T
}

func newTarget(t *testing.T) *target {
	t.Helper()
	file, loop := attachedFile(t)
	if err := os.Truncate(file, 16<<20); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := LoopsResized(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	x := &target{root: root, t: t, device: filepath.Join(root, "dev", filepath.Base(loop))}
	session := "sys/class/iscsi_host/host1/device/session1"
	for _, dir := range []string{"bin", "dev/disk/by-path", "sys/class/scsi_host/host1",
		session + "/target1:0:0/1:0:0:0/block/" + filepath.Base(loop), "sys/block/" + filepath.Base(loop) + "/device"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"sys/class/scsi_host/host1/scan": "",
		"sys/block/" + filepath.Base(loop) + "/device/delete": "",
		"bin/iscsiadm": fmt.Sprintf(`#!/bin/sh
echo "$*" >> %[1]s/calls
s=%[1]s/%[2]s
case "$*" in
*"-o show") echo "iface.transport_name = tcp" ;;
*--login)
	mkdir -p $s/iscsi_session/session1 $s/connection1:0/iscsi_connection/connection1:0
	echo %[3]s > $s/iscsi_session/session1/targetname
	echo 10.0.0.1 > $s/connection1:0/iscsi_connection/connection1:0/persistent_address
	echo 3260 > $s/connection1:0/iscsi_connection/connection1:0/persistent_port
	ln -sf ../../%[4]s %[1]s/dev/disk/by-path/ip-10.0.0.1:3260-iscsi-%[3]s-lun-0 ;;
*--logout) rm -r $s/iscsi_session $s/connection1:0 ;;
esac
`, root, session, iscsiTarget, filepath.Base(loop))} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(loop, &st); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(x.device, unix.S_IFBLK|0o600, int(st.Rdev)); err != nil {
		t.Skipf("devices cannot be made here: %v", err)
	}
	t.Setenv("PATH", filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	return x
}

// use has a Manager work with the machine of the target.
func (x *target) use(m *Manager) *Manager {
	m.disks = remotedisk.New(remotedisk.Config{Root: x.root, Dirs: m.diskDirs,
		Run: func(ctx context.Context, name string, args ...string) (string, error) {
			return output(ctx, maxAnswer, name, args...)
		}})
	return m
}

func (x *target) calls(text string) int {
	all, err := os.ReadFile(filepath.Join(x.root, "calls"))
	if err != nil {
		x.t.Error(err)
	}
	return strings.Count(string(all), text)
}

func (x *target) deleted() string {
	text, err := os.ReadFile(filepath.Join(x.root, "sys/block", filepath.Base(x.device), "device/delete"))
	if err != nil {
		x.t.Error(err)
	}
	return string(text)
}

func onTarget(secret bool) *corev1.ISCSIPersistentVolumeSource {
	s := &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1", IQN: iscsiTarget}
	if secret {
		s.SessionCHAPAuth, s.SecretRef = true, &corev1.SecretReference{Namespace: "ns", Name: "chap"}
	}
	return s
}

// The pods of a node share the file system of an iSCSI volume, also over a restart of the agent. The first pod logs in
// to the target, and the last one logs out. A disk that is in use is not removed.
func TestISCSIVolume(t *testing.T) {
	w := newWorld(t)
	x := newTarget(t)
	w.secrets["chap"] = &corev1.Secret{Data: map[string][]byte{"node.session.auth.password": []byte("word")}}
	w.cfg.Persistent = bound("")
	pv := w.cfg.Persistent.(*stored).volumes["pv"]
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{ISCSI: onTarget(true)}
	x.use(w.Manager)
	for _, uid := range []types.UID{"p1", "p2"} {
		if err := w.Prepare(t.Context(), podWithClaim(string(uid))); err != nil {
			t.Fatal(err)
		}
		v := w.Volumes(uid)["v"]
		if v.Persistent != "kubernetes.io/iscsi" || v.Claim != "c" || !securepath.IsMounted(v.HostPath) {
			t.Errorf("%s: %+v", uid, v)
		}
	}
	if x.calls("--login") != 1 || x.calls("auth.password -v word") != 1 {
		t.Error("the second pod does not use the session of the first")
	}
	kept := filepath.Join(w.Volumes("p1")["v"].HostPath, "kept")
	if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Remove(t.Context(), "p1"); err != nil {
		t.Fatal(err)
	}
	if x.calls("--logout") != 0 || x.deleted() != "" {
		t.Error("the disk of the second pod went with the first")
	}
	persistent := w.cfg.Persistent
	w.Manager = w.restart()
	w.cfg.Persistent = persistent
	x.use(w.Manager)
	if err := w.Prepare(t.Context(), podWithClaim("p2")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(w.Volumes("p2")["v"].HostPath, "kept"))
	if err != nil || string(text) != "x" {
		t.Error(string(text), err)
	}
	if err := w.disks.Detach(t.Context(), w.disksDir("p2")); !errors.Is(err, unix.EBUSY) || x.calls("--logout") != 0 ||
		x.deleted() != "" {
		t.Errorf("a mounted disk was removed: %v", err)
	}
	for range 2 {
		if err := w.Remove(t.Context(), "p2"); err != nil {
			t.Fatal(err)
		}
	}
	if x.calls("--logout") != 1 || x.deleted() != "1" {
		t.Error("the last pod left its disk")
	}
}

// A pod may name the volume itself, or use the disk as a block device. What fails in between goes with the pod.
func TestISCSIDisk(t *testing.T) {
	w := newWorld(t)
	x := newTarget(t)
	w.cfg.Persistent = bound("")
	pv := w.cfg.Persistent.(*stored).volumes["pv"]
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{ISCSI: onTarget(false)}
	pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	x.use(w.Manager)
	if err := w.Prepare(t.Context(), mapped("p1")); err != nil {
		t.Fatal(err)
	}
	if got := w.Volumes("p1")["v"].Device; got != x.device {
		t.Errorf("device %s", got)
	}
	if err := w.Remove(t.Context(), "p1"); err != nil || x.deleted() != "1" || x.calls("--logout") != 1 {
		t.Error(err)
	}
	inline := podWith("p2", volume("v", corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "10.0.0.1",
		IQN: iscsiTarget, FSType: "nofs"}}))
	err := w.Prepare(t.Context(), inline)
	if err == nil || !strings.Contains(err.Error(), `MountVolume.SetUp failed for volume "v" : mkfs.nofs`) {
		t.Errorf("a file system that does not exist: %v", err)
	}
	if err := w.Remove(t.Context(), "p2"); err != nil || x.calls("--logout") != 2 {
		t.Error(err)
	}
	inline = inline.DeepCopy()
	inline.UID, inline.Spec.Volumes[0].ISCSI.FSType = "p3", ""
	if err := w.Prepare(t.Context(), inline); err != nil {
		t.Fatal(err)
	}
	if !securepath.IsMounted(w.Volumes("p3")["v"].HostPath) {
		t.Error("the volume of the pod is not mounted")
	}
	if err := w.Remove(t.Context(), "p3"); err != nil || x.calls("--logout") != 3 {
		t.Error(err)
	}
}

// A machine without iscsiadm and mount: the pod waits with the reason, and its end does not.
func TestNoISCSI(t *testing.T) {
	w := newWorld(t)
	(&target{root: t.TempDir(), t: t}).use(w.Manager)
	t.Setenv("PATH", t.TempDir())
	pod := podWith("p1", volume("v", corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "10.0.0.1",
		IQN: iscsiTarget}}), volume("f", corev1.VolumeSource{FC: &corev1.FCVolumeSource{WWIDs: []string{"none"}}}),
		volume("n", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "host", Path: "/p", ReadOnly: true}}))
	err := w.Prepare(t.Context(), pod)
	if err == nil || !strings.Contains(err.Error(), `"iscsiadm": executable file not found`) ||
		!strings.Contains(err.Error(), "no fc disk found") ||
		!strings.Contains(err.Error(), "mount -t nfs -o ro -- host:/p ") {
		t.Error(err)
	}
	if err := w.Remove(t.Context(), "p1"); err != nil {
		t.Error(err)
	}
}
