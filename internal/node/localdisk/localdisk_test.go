package localdisk

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/core/volume"
)

const place = "pvc-1_ns_data"

func disk(t *testing.T, bases ...string) *Disk {
	t.Helper()
	d, err := New(bases...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func makeAt(t *testing.T, d *Disk, p volume.LocalPlace) (path, limit string) {
	t.Helper()
	path, limit, err := d.Make(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return path, limit
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// A directory is made once, for everybody inside a base that is root's only, and goes with what is in it.
func TestDirectory(t *testing.T) {
	base := filepath.Join(t.TempDir(), "storage")
	d := disk(t, base)
	p := volume.LocalPlace{Name: place, Size: 1 << 20}
	path, _ := makeAt(t, d, p)
	if path != filepath.Join(base, place) {
		t.Errorf("made at %s", path)
	}
	for dir, want := range map[string]os.FileMode{base: 0o700, path: 0o777} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %o", dir, info.Mode(), err, want)
		}
	}
	put(t, filepath.Join(path, "file"), "data")
	if err := os.Chmod(path, 0o750); err != nil { // a pod did
		t.Fatal(err)
	}
	if again, _ := makeAt(t, d, p); again != path {
		t.Errorf("made again at %s", again)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("a volume in use has a new mode: %v, %v", info.Mode(), err)
	}
	for range 2 {
		p.Base = base
		if err := d.Remove(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if exists(path) {
			t.Error("the data is still there")
		}
	}
}

// What a container leaves in its volume leads nowhere when the volume is deleted; names and bases that did not
// come from the provisioner are refused.
func TestHostile(t *testing.T) {
	top := t.TempDir()
	base, outside := filepath.Join(top, "storage"), filepath.Join(top, "outside")
	if err := os.MkdirAll(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(outside, "precious"), "x")
	d := disk(t, base)
	path, _ := makeAt(t, d, volume.LocalPlace{Name: place})
	for _, err := range []error{
		os.Symlink(outside, filepath.Join(path, "link")), os.Symlink("/", filepath.Join(path, "root")),
		os.MkdirAll(filepath.Join(path, "mounted"), 0o700),
		unix.Mount(outside, filepath.Join(path, "mounted"), "", unix.MS_BIND, ""),
		os.Symlink(outside, filepath.Join(base, "pvc-2_ns_data")),
		os.Symlink(filepath.Join(outside, "precious"), filepath.Join(base, "pvc-3_ns_data")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{place, "pvc-2_ns_data", "pvc-3_ns_data"} {
		if err := d.Remove(t.Context(), volume.LocalPlace{Base: base, Name: name}); err != nil {
			t.Errorf("remove %s: %v", name, err)
		}
		if exists(filepath.Join(base, name)) {
			t.Errorf("%s is still there", name)
		}
	}
	if err := os.Symlink(outside, filepath.Join(base, "pvc-4_ns_data")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Make(t.Context(), volume.LocalPlace{Name: "pvc-4_ns_data"}); err == nil {
		t.Error("a link was taken for a volume")
	}
	if _, _, err := d.Make(t.Context(), volume.LocalPlace{Name: "pvc-4_ns_data", Block: true}); err == nil {
		t.Error("a link was taken for a block volume")
	}
	for _, p := range []volume.LocalPlace{{Base: base, Name: ".."}, {Base: base, Name: "pvc-/../../outside"},
		{Base: base, Name: "etc"}, {Base: outside, Name: place}, {Name: place}, {Base: base, Name: "pvc-\x00"},
		{Base: base, Name: "pvc-" + strings.Repeat("x", 255)}} {
		if err := d.Remove(t.Context(), p); err == nil {
			t.Errorf("%+v was removed", p)
		}
		if p.Base == base || p.Base == outside {
			if _, _, err := d.Make(t.Context(), p); err == nil {
				t.Errorf("%+v was made", p)
			}
		}
	}
	if !exists(filepath.Join(outside, "precious")) {
		t.Error("something outside was deleted")
	}
	for _, b := range []string{"relative", "/", ""} {
		if _, err := New(b); err == nil {
			t.Errorf("base %q was taken", b)
		}
	}
}

// Sweep removes what was made for volumes that never were, and nothing with data in it.
func TestSweep(t *testing.T) {
	base := t.TempDir()
	d := disk(t, base)
	empty, _ := makeAt(t, d, volume.LocalPlace{Name: "pvc-empty_ns_a"})
	sparse, _ := makeAt(t, d, volume.LocalPlace{Name: "pvc-sparse_ns_a", Block: true, Size: 1 << 20})
	known, _ := makeAt(t, d, volume.LocalPlace{Name: "pvc-known_ns_a"})
	full, _ := makeAt(t, d, volume.LocalPlace{Name: "pvc-full_ns_a"})
	written, _ := makeAt(t, d, volume.LocalPlace{Name: "pvc-written_ns_a", Block: true, Size: 1 << 20})
	put(t, filepath.Join(full, "f"), "data")
	put(t, written, "data")
	foreign := filepath.Join(base, "somebody's")
	if err := os.Mkdir(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.Sweep(t.Context(), func(v string) bool { return v == "pvc-known" }); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{empty: false, sparse: false, known: true, full: true, written: true,
		foreign: true} {
		if exists(path) != want {
			t.Errorf("%s is there: %v", path, !want)
		}
	}
}

// Of several bases, one that is made before is found again, and a class may name one.
func TestBases(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	d := disk(t, a, b)
	path, _ := makeAt(t, d, volume.LocalPlace{Name: place, Base: b})
	if path != filepath.Join(b, place) {
		t.Errorf("made at %s", path)
	}
	if again, _ := makeAt(t, d, volume.LocalPlace{Name: place}); again != path {
		t.Errorf("made again at %s", again)
	}
}

// A base whose disk is broken, read-only, or full, in bytes or in files, is passed over while another one works. If
// none does, the error has the reason of each. What was made on one of them is found there all the same.
func TestUnusableBases(t *testing.T) {
	top := t.TempDir()
	mount := func(name, options string, flags uintptr) string {
		base := filepath.Join(top, name)
		if err := errors.Join(os.Mkdir(base, 0o700), unix.Mount("tmpfs", base, "tmpfs", flags, options)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(base, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		return base
	}
	inodes, bytes := mount("no-inodes", "size=512m,nr_inodes=2", 0), mount("no-bytes", "size=64k", 0)
	readOnly := mount("read-only", "size=512m", 0)
	makeAt(t, disk(t, readOnly), volume.LocalPlace{Name: "pvc-before_ns_data"})
	if err := unix.Mount("", readOnly, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=512m"); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(top, "file"), "not a directory")
	put(t, filepath.Join(inodes, "last"), "")
	if f, err := os.Create(filepath.Join(bytes, "filler")); err != nil {
		t.Fatal(err)
	} else {
		_, err := f.Write(make([]byte, 1<<20))
		if !errors.Is(err, unix.ENOSPC) || f.Close() != nil {
			t.Fatalf("the disk is not full: %v", err)
		}
	}
	bad := []string{filepath.Join(top, "file"), readOnly, inodes, bytes}
	good := mount("good", "size=1m", 0)
	refuses := mount("refuses", "size=512m", 0) // as a disk that fails: it has space, and makes no directory
	if out, err := exec.Command("chattr", "+i", refuses).CombinedOutput(); err != nil {
		t.Fatalf("chattr: %v: %s", err, out)
	}
	path, _ := makeAt(t, disk(t, append(bad, refuses, good)...), volume.LocalPlace{Name: place})
	if path != filepath.Join(good, place) {
		t.Errorf("made at %s", path)
	}
	at, err := disk(t, append(bad, good)...).choose("pvc-before_ns_data")
	if err != nil || !slices.Equal(at, []string{readOnly}) {
		t.Errorf("what was made before is looked for at %q, %v", at, err)
	}
	bad = append(bad, refuses)
	_, _, err = disk(t, bad...).Make(t.Context(), volume.LocalPlace{Name: place})
	for _, want := range []string{refuses, "operation not permitted"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q: %v", want, err)
		}
	}
	_, _, err = disk(t, bad[:4]...).Make(t.Context(), volume.LocalPlace{Name: place})
	for _, want := range append(bad[:4], "not a directory", "read-only file system", "no space left on device") {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q: %v", want, err)
		}
	}
}

// A block volume is a file without blocks that keeps its data when it grows; its loop device grows, too.
func TestBlock(t *testing.T) {
	base := t.TempDir()
	d := disk(t, base)
	p := volume.LocalPlace{Base: base, Name: place, Size: 1 << 20, Block: true}
	path, limit := makeAt(t, d, p)
	if info, err := os.Stat(path); err != nil || info.Size() != 1<<20 || limit != ByFile ||
		info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v, %s", info, err, limit)
	}
	out, err := exec.Command("losetup", "--show", "-f", path).CombinedOutput()
	if err != nil {
		t.Skipf("no loop devices: %v: %s", err, out)
	}
	loop := strings.TrimSpace(string(out))
	size := func() string {
		b, err := os.ReadFile("/sys/block/" + filepath.Base(loop) + "/size")
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(b))
	}
	p.Size = 2 << 20
	if err := d.Resize(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if size() != "4096" {
		t.Errorf("the loop device has %s sectors", size())
	}
	p.Size = 1 << 20
	if err := d.Resize(t.Context(), p); err != nil || size() != "4096" {
		t.Errorf("shrunk: %s, %v", size(), err)
	}
	if err := d.Remove(t.Context(), p); err != nil || exists(path) {
		t.Errorf("removed: %v", err)
	}
	if b, err := os.ReadFile("/sys/block/" + filepath.Base(loop) + "/loop/backing_file"); err == nil {
		t.Errorf("%s still shows %s", loop, b)
	}
}

// A block device has at least the size that was requested, although its size is a number of sectors.
func TestBlockOfOddSize(t *testing.T) {
	base := t.TempDir()
	d := disk(t, base)
	for _, c := range []struct{ request, size int64 }{{1, 512}, {1025, 1536}, {1536, 1536}, {1537, 2048}} {
		p := volume.LocalPlace{Base: base, Name: place, Size: c.request, Block: true}
		path, _ := makeAt(t, d, p)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() != c.size {
			t.Errorf("%d bytes: %d", c.request, info.Size())
		}
	}
}

// Where the file system has project quotas, a volume cannot have more than its size, until it is resized.
func TestQuota(t *testing.T) {
	dir := t.TempDir()
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	if err := os.Mkdir(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{{"truncate", "-s", "64M", image},
		{"mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", image},
		{"mount", "-o", "loop,prjquota", image, mount}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no ext4 with project quotas here: %s: %v: %s", c[0], err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := disk(t, filepath.Join(mount, "a"), filepath.Join(mount, "b"))
	var paths []string
	for _, name := range []string{place, "pvc-2_ns_data"} {
		path, limit := makeAt(t, d, volume.LocalPlace{Name: name, Size: 1 << 20})
		if limit != ByQuota {
			t.Fatalf("the size is kept by %s", limit)
		}
		paths = append(paths, path)
	}
	// A process with CAP_SYS_RESOURCE is not held back: it writes as another user.
	write := func(path string, kib string) error {
		c := exec.Command("dd", "if=/dev/zero", "of=file", "bs=1024", "count="+kib)
		c.Dir = path
		c.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return c.Run()
	}
	for _, b := range append(d.Bases(), mount, dir, filepath.Dir(dir)) {
		if err := os.Chmod(b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range paths {
		if err := write(path, "900"); err != nil {
			t.Fatalf("within the size: %v", err)
		}
		if err := write(path, "1200"); err == nil {
			t.Error("more than the size was written")
		}
	}
	if err := d.Resize(t.Context(), volume.LocalPlace{Base: filepath.Dir(paths[0]), Name: place,
		Size: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := write(paths[0], "1200"); err != nil {
		t.Errorf("after a resize: %v", err)
	}
	if err := d.Remove(t.Context(), volume.LocalPlace{Base: filepath.Dir(paths[0]), Name: place}); err != nil {
		t.Fatal(err)
	}
	if exists(paths[0]) || !exists(filepath.Join(paths[1], "file")) {
		t.Error("removed the wrong volume")
	}
}

// Without quotas, the annotation of a volume is "none".
func TestNoQuota(t *testing.T) {
	base := filepath.Join(t.TempDir(), "tmpfs")
	if err := errors.Join(os.Mkdir(base, 0o700), unix.Mount("tmpfs", base, "tmpfs", 0, "size=1m")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	if _, limit := makeAt(t, disk(t, base), volume.LocalPlace{Name: place, Size: 1 << 20}); limit != ByNothing {
		t.Errorf("the size is kept by %s", limit)
	}
}
