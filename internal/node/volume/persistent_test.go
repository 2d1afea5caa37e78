package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	corevolume "carob/internal/core/volume"
)

// stored are claims and volumes of the API.
type stored struct {
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
}

func (s *stored) VolumeClaim(_ context.Context, _, name string) (*corev1.PersistentVolumeClaim, error) {
	if c := s.claims[name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, name)
}

func (s *stored) PersistentVolume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	if v := s.volumes[name]; v != nil {
		return v, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumes"}, name)
}

// bound stores a claim "c" that is bound to a local volume "pv" at a path.
func bound(path string) *stored {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "claim",
		Annotations: map[string]string{corevolume.BindCompleted: "yes"}},
		Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef:               corevolume.Ref(c),
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}}}
	return &stored{map[string]*corev1.PersistentVolumeClaim{"c": c}, map[string]*corev1.PersistentVolume{"pv": v}}
}

func podWithClaim(uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: uid, UID: types.UID(uid)},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}},
			Containers: []corev1.Container{{Name: "main",
				VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}}}}
}

// A pod gets the directory of its claim's volume, again after a restart, and its end leaves the data.
func TestLocalVolume(t *testing.T) {
	w, data := newWorld(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "kept"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.cfg.Persistent = bound(data)
	pod := podWithClaim("p1")
	for range 2 {
		if err := w.Prepare(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if v := w.Volumes("p1")["v"]; v.HostPath != data || v.ReadOnly || v.Claim != "c" {
			t.Errorf("%+v", v)
		}
		w.Manager = w.restart()
		w.cfg.Persistent = bound(data)
	}
	if err := w.Remove(t.Context(), "p1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(data, "kept")); err != nil {
		t.Error("the data went with the pod:", err)
	}
}

// Why a claim can't be used (L10.23, L10.24, S7.5), word for word.
func TestClaimsThatCannotBeUsed(t *testing.T) {
	now := metav1.Now()
	const claim = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process " +
		"volumes=[v]: error processing PVC ns/c: "
	for want, change := range map[string]func(s *stored, p *corev1.Pod){
		claim + "PVC is not bound": func(s *stored, _ *corev1.Pod) { s.claims["c"].Annotations = nil },
		claim + "PVC is being deleted": func(s *stored, _ *corev1.Pod) {
			s.claims["c"].DeletionTimestamp = &now
		},
		claim + `failed to fetch PVC from API server: persistentvolumeclaims "c" not found`: func(s *stored,
			_ *corev1.Pod) {
			delete(s.claims, "c")
		},
		claim + `failed to fetch PV pv from API server: persistentvolumes "pv" not found`: func(s *stored,
			_ *corev1.Pod) {
			delete(s.volumes, "pv")
		},
		claim + "PV pv is not bound to this PVC": func(s *stored, _ *corev1.Pod) {
			s.volumes["pv"].Spec.ClaimRef.UID = "another"
		},
		claim + "volume v has volumeMode Block, but is specified in volumeMounts": func(s *stored, _ *corev1.Pod) {
			s.volumes["pv"].Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
		},
		claim + "volume v has volumeMode Filesystem, but is specified in volumeDevices": func(_ *stored,
			p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = nil
			p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
		},
		`MountVolume.NewMounter initialization failed for volume "pv" : path "/no/such" does not exist`: func(s *stored,
			_ *corev1.Pod) {
			s.volumes["pv"].Spec.Local.Path = "/no/such"
		},
		`MountVolume.SetUp failed for volume "pv" : kubernetes.io/csi: driver name x.example.com not found in the list ` +
			`of registered CSI drivers`: func(s *stored, _ *corev1.Pod) {
			s.volumes["pv"].Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "x.example.com"}}
		},
		`MountVolume.SetUp failed for volume "pv" : mount option "uid=0" is not supported for a directory`: func(s *stored,
			_ *corev1.Pod) {
			s.volumes["pv"].Spec.MountOptions = []string{"uid=0"}
		},
	} {
		w := newWorld(t)
		s, pod := bound(t.TempDir()), podWithClaim("p1")
		change(s, pod)
		w.cfg.Persistent = s
		if err := w.Prepare(t.Context(), pod); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// A pod that runs goes on with a claim that is being deleted and still held.
	w, s := newWorld(t), bound(t.TempDir())
	s.claims["c"].DeletionTimestamp, s.claims["c"].Finalizers = &now, []string{claimProtection}
	s.claims["c"].Status.Phase = corev1.ClaimPending // the status is the last of the binder's writes
	w.cfg.Persistent = s
	if err := w.Prepare(t.Context(), podWithClaim("p1")); err != nil {
		t.Error(err)
	}
}

// A ReadWriteOncePod volume has one pod, until that is removed.
func TestSinglePod(t *testing.T) {
	w, s := newWorld(t), bound(t.TempDir())
	s.volumes["pv"].Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	w.cfg.Persistent = s
	for range 2 {
		if err := w.Prepare(t.Context(), podWithClaim("p1")); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // also where the agent starts again, and comes to the second pod first
		if err := w.Prepare(t.Context(), podWithClaim("p2")); err == nil ||
			!strings.Contains(err.Error(), "already in use by another pod") {
			t.Errorf("the second pod: %v", err)
		}
		w.Manager = w.restart()
		w.cfg.Persistent = s
	}
	if err := w.Prepare(t.Context(), podWithClaim("p1")); err != nil {
		t.Error(err)
	}
	if err := w.Remove(t.Context(), "p1"); err != nil {
		t.Fatal(err)
	}
	if err := w.Prepare(t.Context(), podWithClaim("p2")); err != nil {
		t.Error(err)
	}
}

// stuck is a node whose CSI driver does not release volumes.
type stuck struct {
	fullNode

	gone bool // it does
}

func (s *stuck) Release(context.Context, types.UID) error {
	if !s.gone {
		return errors.New("the driver is away")
	}
	return nil
}

// A ReadWriteOncePod volume stays with its pod as long as the driver has not released it, also when the agent starts
// again (never), and goes when it is (late, twice). Without the list of pods no pod gets the volume.
func TestSinglePodThatStays(t *testing.T) {
	w, s, driver := newWorld(t), bound(t.TempDir()), &stuck{}
	s.volumes["pv"].Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	w.cfg.Persistent, w.cfg.CSI = s, driver
	if err := w.Prepare(t.Context(), podWithClaim("p1")); err != nil {
		t.Fatal(err)
	}
	again := func() {
		w.Manager = w.restart()
		w.cfg.Persistent, w.cfg.CSI = s, driver
	}
	for range 2 {
		if err := w.Remove(t.Context(), "p1"); err == nil {
			t.Fatal("the pod's volumes were removed without the driver")
		}
		if err := w.Prepare(t.Context(), podWithClaim("p2")); err == nil ||
			!strings.Contains(err.Error(), "already in use by another pod") {
			t.Errorf("the second pod: %v", err)
		}
		again()
	}
	driver.gone = true
	for range 2 {
		if err := w.Remove(t.Context(), "p1"); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(w.podDir("p3"), singleDir)
	if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o700), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	again()
	if err := w.Prepare(t.Context(), podWithClaim("p2")); err == nil ||
		!strings.Contains(err.Error(), "find the ReadWriteOncePod volumes of pods") {
		t.Errorf("with an unreadable list: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := w.Prepare(t.Context(), podWithClaim("p2")); err != nil {
		t.Error(err)
	}
}

// Mount options make a mount of the pod's own, which goes with the pod and leaves the data.
func TestMountOptions(t *testing.T) {
	w, data := newWorld(t), t.TempDir()
	s := bound(data)
	s.volumes["pv"].Spec.MountOptions = []string{"ro", "noexec"}
	w.cfg.Persistent = s
	if err := w.Prepare(t.Context(), podWithClaim("p1")); err != nil {
		t.Fatal(err)
	}
	v := w.Volumes("p1")["v"]
	if err := os.WriteFile(filepath.Join(v.HostPath, "f"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing: %v", err)
	}
	if err := os.WriteFile(filepath.Join(data, "f"), nil, 0o600); err != nil {
		t.Error(err)
	}
	if err := w.Remove(t.Context(), "p1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(data, "f")); err != nil {
		t.Error("the data went with the pod:", err)
	}
}

// An agent that was killed between the mount of a directory and its options sets them when it prepares the pod again.
func TestMountOptionsAfterKill(t *testing.T) {
	w, data := newWorld(t), t.TempDir()
	s := bound(data)
	s.volumes["pv"].Spec.MountOptions = []string{"ro"}
	w.cfg.Persistent = s
	dir := w.volumeDir("p1", "v")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(data, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := w.Prepare(t.Context(), podWithClaim("p1")); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing: %v", err)
	}
	if err := w.Remove(t.Context(), "p1"); err != nil {
		t.Fatal(err)
	}
}

// fsGroup reaches every file of the volume, and nothing that a link leads to (S4.71).
func TestVolumeGroup(t *testing.T) {
	w, data, outside := newWorld(t), t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	for _, err := range []error{os.MkdirAll(filepath.Join(data, "a/b"), 0o700),
		os.WriteFile(filepath.Join(data, "a/b/file"), nil, 0o400), os.WriteFile(secret, nil, 0o600),
		os.WriteFile(filepath.Join(data, "suid"), nil, 0o700), unix.Chmod(filepath.Join(data, "suid"), 0o6775),
		os.Symlink(secret, filepath.Join(data, "a/link")), os.Symlink(outside, filepath.Join(data, "dir")),
		unix.Mkfifo(filepath.Join(data, "pipe"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.cfg.Persistent = bound(data)
	pod := podWithClaim("p1")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4242))}
	if err := w.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]uint32{data: {4242, 0o2770}, filepath.Join(data, "a/b"): {4242, 0o2770},
		filepath.Join(data, "a/b/file"): {4242, 0o660}, filepath.Join(data, "pipe"): {4242, 0o660},
		filepath.Join(data, "suid"):   {4242, 0o6775},
		filepath.Join(data, "a/link"): {4242, 0o777}, secret: {0, 0o600}} {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Gid != want[0] || st.Mode&0o7777&want[1] != want[1] || path == secret && st.Mode&0o7777 != want[1] {
			t.Errorf("%s: group %d, mode %o, want %v", path, st.Gid, st.Mode&0o7777, want)
		}
	}
	pod.UID, pod.Spec.SecurityContext.FSGroupChangePolicy = "p2", new(corev1.FSGroupChangeOnRootMismatch)
	if err := os.Lchown(filepath.Join(data, "pipe"), -1, 0); err != nil {
		t.Fatal(err)
	}
	if err := w.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(data, "pipe"), &st); err != nil || st.Gid != 0 {
		t.Errorf("the root matched, and the files were looked at: %d, %v", st.Gid, err)
	}
}

// A file becomes a block device by a loop device, which pods share, also after a restart, and which goes with the
// last of them.
func TestBlockVolume(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("no loop devices")
	}
	s := bound(file)
	s.volumes["pv"].Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	w.cfg.Persistent = s
	device := ""
	for _, uid := range []string{"p1", "p2"} {
		pod := podWithClaim(uid)
		c := &pod.Spec.Containers[0]
		c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
		if err := w.Prepare(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		v := w.Volumes(types.UID(uid))["v"]
		if !strings.HasPrefix(v.Device, "/dev/loop") || device != "" && v.Device != device {
			t.Fatalf("device %q after %q", v.Device, device)
		}
		device = v.Device
		for range 2 { // recorded once, also after a restart of the agent
			want := fmt.Sprintf("SuccessfulMountVolume MapVolume.MapPodDevice succeeded for volume \"pv\" volumeMapPath %q",
				filepath.Join(w.root, "pods", uid, "volumeDevices", "kubernetes.io~local-volume"))
			if n := len(w.events); n != map[string]int{"p1": 1, "p2": 2}[uid] || w.events[n-1] != want {
				t.Errorf("events %q, want %q", w.events, want)
			}
			w.Manager = w.restart()
			w.cfg.Persistent = s
			if err := w.Prepare(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
		}
	}
	attached := func() bool {
		b, err := os.ReadFile("/sys/block/" + filepath.Base(device) + "/loop/backing_file")
		return err == nil && strings.TrimSpace(string(b)) == file
	}
	for uid, want := range map[types.UID]bool{"p1": true} {
		if err := w.Remove(t.Context(), uid); err != nil || attached() != want {
			t.Errorf("without %s: attached %v, %v", uid, attached(), err)
		}
	}
	if err := w.Remove(t.Context(), "p2"); err != nil || attached() {
		t.Errorf("without pods: attached %v, %v", attached(), err)
	}
}

// mapped is a pod that uses its claim as a block device.
func mapped(uid string) *corev1.Pod {
	pod := podWithClaim(uid)
	c := &pod.Spec.Containers[0]
	c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
	return pod
}

// attachedFile makes a file that is attached to a loop device until the test ends, as another program does it.
func attachedFile(t *testing.T) (file, device string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<20)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--show", "-f", file).CombinedOutput()
	if err != nil {
		t.Skipf("no loop devices: %v: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "-d", device).Run() })
	return file, device
}

func backs(device, file string) bool {
	b, err := os.ReadFile("/sys/block/" + filepath.Base(device) + "/loop/backing_file")
	return err == nil && strings.TrimSpace(string(b)) == file
}

// A loop device that carob did not attach stays attached when the pods that use it are gone.
func TestLoopDeviceOfTheAdministrator(t *testing.T) {
	w := newWorld(t)
	file, device := attachedFile(t)
	s := bound(device)
	s.volumes["pv"].Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	w.cfg.Persistent = s
	if err := w.Prepare(t.Context(), mapped("p1")); err != nil {
		t.Fatal(err)
	}
	if got := w.Volumes("p1")["v"].Device; got != device {
		t.Errorf("the pod has %q, want %q", got, device)
	}
	if err := w.Remove(t.Context(), "p1"); err != nil || !backs(device, file) {
		t.Errorf("after the pod: attached %v, %v", backs(device, file), err)
	}
}

// After a reboot the loop device that a pod had may be another file's. The end of the pod leaves it alone.
func TestLoopDeviceAfterReboot(t *testing.T) {
	w := newWorld(t)
	file, _ := attachedFile(t)
	s := bound(file)
	s.volumes["pv"].Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	w.cfg.Persistent = s
	if err := w.Prepare(t.Context(), mapped("p1")); err != nil {
		t.Fatal(err)
	}
	foreign, device := attachedFile(t)
	link := filepath.Join(w.devicesDir("p1"), "pv")
	if err := errors.Join(os.Remove(link), os.Symlink(device, link)); err != nil { // as if it had been this one
		t.Fatal(err)
	}
	w.Manager = w.restart()
	w.cfg.Persistent = s
	if err := w.Remove(t.Context(), "p1"); err != nil || !backs(device, foreign) {
		t.Errorf("after the pod: the other file is attached: %v, %v", backs(device, foreign), err)
	}
	if _, err := os.Lstat(w.podDir("p1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pod's directory is still there: %v", err)
	}
}

// A block device whose volume is to be a file system gets one, once.
func TestFileSystemOnDevice(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 16<<20)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--show", "-f", file).CombinedOutput()
	if err != nil {
		t.Skipf("no loop devices: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "-d", device).Run() })
	w.cfg.Persistent = bound(device)
	for _, uid := range []types.UID{"p1", "p2"} {
		if err := w.Prepare(t.Context(), podWithClaim(string(uid))); err != nil {
			t.Fatal(err)
		}
		kept := filepath.Join(w.Volumes(uid)["v"].HostPath, "kept")
		if uid == "p1" {
			err = os.WriteFile(kept, nil, 0o600)
		} else {
			_, err = os.Stat(kept)
		}
		if err != nil {
			t.Error(err)
		}
		if err := w.Remove(t.Context(), uid); err != nil {
			t.Error(err)
		}
	}
}

// No field of a volume becomes an option of a program.
func TestMountArguments(t *testing.T) {
	for _, bad := range [][3]string{{"-o", "/dev/x", ""}, {"ext4", "-oexec", ""}, {"ext4", "", ""},
		{"ext4", "/dev/x", "-x"}, {"ext4", "/dev/x", "a,b"}, {"ext4", "/dev/x", "a b"}, {"ext4", "a\nb", ""},
		{"../x", "/dev/x", ""}} {
		var list []string
		if bad[2] != "" {
			list = []string{bad[2]}
		}
		if args, err := mountArgs("/dir", bad[0], bad[1], list); err == nil {
			t.Errorf("%q: %q", bad, args)
		}
	}
	args, err := mountArgs("/dir", "nfs", "host:/path", []string{"nfsvers=4.1", "hard"})
	if got := strings.Join(args, " "); err != nil || got != "-t nfs -o nfsvers=4.1,hard -- host:/path /dir" {
		t.Errorf("%s, %v", got, err)
	}
}
