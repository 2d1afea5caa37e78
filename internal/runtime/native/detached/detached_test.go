package detached

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// world is an image and a layer above it.
type world struct {
	lower, upper, outside string
	overlay               Overlay
}

func newWorld(t *testing.T) world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	dir := t.TempDir()
	w := world{lower: filepath.Join(dir, "lower"), upper: filepath.Join(dir, "upper"),
		outside: filepath.Join(dir, "outside")}
	work := filepath.Join(dir, "work")
	for _, d := range []string{w.lower, w.upper, w.outside, work, filepath.Join(w.lower, "etc")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.overlay = Overlay{Lower: []string{w.lower}, Upper: w.upper, Work: work}
	return w
}

func (w world) mount(t *testing.T, points ...string) *os.File {
	t.Helper()
	w.overlay.Points = points
	f, err := Mount(w.overlay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// below lists what is below a directory.
func below(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	if err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		if e.IsDir() {
			name += "/"
		}
		list = append(list, name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestPoints: mount points are made with their parents and the modes that the helper gives them, whatever our umask
// is; what the image has stays as it is.
func TestPoints(t *testing.T) {
	w := newWorld(t)
	if err := os.WriteFile(filepath.Join(w.lower, "etc", "hosts"), []byte("image"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/run", filepath.Join(w.lower, "var")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(w.lower, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	defer syscall.Umask(syscall.Umask(0o077))
	root := w.mount(t, "/etc/hosts", "/etc/hostname", "/var/secrets/token/", "/data/file", "/", "")
	want := []string{"data/", "data/file", "etc/", "etc/hostname", "run/", "run/secrets/", "run/secrets/token/"}
	if got := below(t, w.upper); !slices.Equal(got, want) {
		t.Errorf("the layer holds %v, want %v", got, want)
	}
	for _, name := range []string{"data/", "data/file", "etc/hostname", "run/secrets/", "run/secrets/token/"} {
		if st, err := os.Stat(filepath.Join(w.upper, name)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	fd, err := open(int(root.Fd()), "/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != int64(len("image")) || st.Mode&0o777 != 0o600 {
		t.Errorf("the image's file has %d bytes and mode %o, %v", st.Size, st.Mode, err)
	}
}

// TestHostilePoints: links of an image lead nowhere else, and a point that cannot be made is left out without an
// effect on others.
func TestHostilePoints(t *testing.T) {
	w := newWorld(t)
	for name, to := range map[string]string{"out": w.outside, "up": "../../../../../.." + w.outside, "loop": "loop",
		"dangling": "/nothing", "proc": "/proc/self/root" + w.outside} {
		if err := os.Symlink(to, filepath.Join(w.lower, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(w.lower, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.mount(t, "/out/a/", "/up/b", "/loop/c", "/dangling", "/dangling/d/", "/proc/e", "/pipe", "/pipe/f",
		"/../../"+w.outside+"/g", "/"+strings.Repeat("x", 300), "/good/")
	if got := below(t, w.outside); len(got) > 0 {
		t.Errorf("outside of the image: %v", got)
	}
	if got := below(t, w.upper); !slices.Contains(got, "good/") || slices.Contains(got, "nothing") {
		t.Errorf("the layer holds %v", got)
	}
}

// TestManyLayers: paths that are too long together are given one by one.
func TestManyLayers(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		dir := filepath.Join(filepath.Dir(w.lower), strings.Repeat("l", 40)+string(rune('a'+i)))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte{byte('a' + i)}, 0o644); err != nil {
			t.Fatal(err)
		}
		w.overlay.Lower = append(w.overlay.Lower, dir)
	}
	w.overlay.NoIndex = true
	w.overlay.Points = []string{"/p/"}
	root, err := Mount(w.overlay)
	if errors.Is(err, unix.EINVAL) {
		t.Skip("the kernel takes no single layers:", err) // before Linux 6.7
	}
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	fd, err := unix.Openat(int(root.Fd()), "f", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b := make([]byte, 2)
	if n, err := unix.Read(fd, b); n != 1 || b[0] != 'a' || err != nil {
		t.Errorf("%q, %v, want the topmost layer's file", b[:max(n, 0)], err)
	}
}

// TestRefused: what the kernel does not take is an error, and nothing stays.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	w.overlay.Upper = "/" + strings.Repeat("u/", longestValue)
	if _, err := Mount(w.overlay); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("a path that is too long: %v", err)
	}
	w.overlay.Upper = filepath.Join(w.outside, "missing")
	if _, err := Mount(w.overlay); err == nil {
		t.Error("a directory that is missing is accepted")
	}
	if got := below(t, w.outside); len(got) > 0 {
		t.Errorf("made: %v", got)
	}
}
