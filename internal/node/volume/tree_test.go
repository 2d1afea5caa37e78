package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/node/spec"
)

// Sub-paths: what is inside is found or made, what leads outside is refused (L3.138).
func TestSubPath(t *testing.T) {
	w := newWorld(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("hush"), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := podWith("u1", volume("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		configMapVolume("cm", corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm")}))
	w.put("cm", map[string]string{"key": "value"})
	vol := w.mustPrepare(pod)["v"].HostPath
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(vol+"/dir/sub", 0o755))
	must(os.WriteFile(vol+"/dir/file", []byte("in"), 0o644))
	must(os.Symlink("dir/sub", vol+"/good"))
	must(os.Symlink(outside, vol+"/abs"))
	must(os.Symlink("../../../../../../../../../../../../"+outside, vol+"/rel"))
	must(os.Symlink("nowhere", vol+"/dangling"))
	must(os.Symlink("/proc/self/root", vol+"/magic"))

	const prepare = `failed to prepare subPath for volumeMount "v" of container "c"`
	const create = `failed to create subPath directory for volumeMount "v" of container "c"`
	tests := []struct {
		volume, path string
		err          string
		mark         string // is seen through the mount when made at this place of the volume
	}{
		{volume: "v", path: "dir", mark: "dir"},
		{volume: "v", path: "good", mark: "dir/sub"},
		{volume: "v", path: "new/deep", mark: "new/deep"},
		{volume: "v", path: "abs", err: prepare},
		{volume: "v", path: "abs/secret", err: prepare},
		{volume: "v", path: "rel/secret", err: prepare},
		{volume: "v", path: "magic/etc", err: prepare},
		{volume: "v", path: "dangling", err: create},
		{volume: "v", path: "dangling/x", err: create},
		{volume: "v", path: "dir/file/x", err: prepare},
	}
	for i, tc := range tests {
		t.Run(tc.path, func(t *testing.T) {
			got, err := w.SubPath(t.Context(),
				spec.SubPath{UID: "u1", Container: "c", Index: i, Volume: tc.volume, Path: tc.path})
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("got %q %v, want %s", got, err, tc.err)
				}
				return
			}
			must(err)
			must(os.WriteFile(filepath.Join(vol, tc.mark, "mark"), nil, 0o600))
			if _, err := os.Stat(filepath.Join(got, "mark")); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := os.Stat(vol + "/nowhere"); err == nil {
		t.Error("followed a dangling link to make a directory")
	}

	t.Run("file", func(t *testing.T) {
		for range 2 { // a second instance of the container gets a fresh mount
			got, err := w.SubPath(t.Context(),
				spec.SubPath{UID: "u1", Container: "c", Index: 90, Volume: "cm", Path: "key"})
			must(err)
			if text, err := os.ReadFile(got); err != nil || string(text) != "value" {
				t.Errorf("%q %v", text, err)
			}
		}
	})
	t.Run("renamed after the check", func(t *testing.T) {
		got, err := w.SubPath(t.Context(), spec.SubPath{UID: "u1", Container: "c", Index: 91, Volume: "v", Path: "dir"})
		must(err)
		must(os.Rename(vol+"/dir", vol+"/old"))
		must(os.Symlink(outside, vol+"/dir"))
		if _, err := os.Stat(filepath.Join(got, "secret")); err == nil {
			t.Error("the mount follows a later rename")
		}
	})

	must(w.Remove(t.Context(), "u1"))
	if text, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(text) != "hush" {
		t.Errorf("data outside the volume was harmed: %v", err)
	}
}

// TestSubPathRace (CVE-2017-1002101, CVE-2021-25741): a container swaps a directory and a link to the
// host while sub-paths below it are prepared. Each one is refused or shows the volume's.
func TestSubPathRace(t *testing.T) {
	w := newWorld(t)
	outside := t.TempDir()
	pod := podWith("u1", volume("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	vol := w.mustPrepare(pod)["v"].HostPath
	for _, dir := range []string{outside + "/sub", vol + "/dir/sub"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(vol+"/dir/sub/ours", nil, 0o600), os.Symlink(outside, vol+"/link")); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for ctx.Err() == nil {
			if err := unix.Renameat2(unix.AT_FDCWD, vol+"/dir", unix.AT_FDCWD, vol+"/link",
				unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	ours, refused := 0, 0
	for i := range 400 {
		path := map[bool]string{true: "dir/sub", false: "dir/new" + strconv.Itoa(i)}[i%2 == 0]
		got, err := w.SubPath(t.Context(), spec.SubPath{UID: "u1", Container: "c", Index: i, Volume: "v", Path: path})
		if err != nil {
			refused++
			continue
		}
		if err := os.WriteFile(filepath.Join(got, "mark"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(got, "ours")); err == nil {
			ours++
		}
	}
	stop()
	swapper.Wait()
	left, err := os.ReadDir(outside)
	if err != nil || len(left) != 1 {
		t.Errorf("made outside of the volume: %v, %v", left, err)
	}
	if _, err := os.Stat(outside + "/sub/mark"); err == nil {
		t.Error("a sub-path showed the host's directory")
	}
	t.Logf("%d times the volume's directory, %d times refused", ours, refused)
	if ours == 0 || refused == 0 {
		t.Error("nothing was raced")
	}
	if err := w.Remove(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
}

// Removal detaches mounts and leaves the data behind them, and follows no link.
func TestRemoveNeverCrossesMounts(t *testing.T) {
	w := newWorld(t)
	precious := t.TempDir()
	keep := filepath.Join(precious, "keep")
	if err := os.WriteFile(keep, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := podWith("u1", volume("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	vol := w.mustPrepare(pod)["v"].HostPath
	target := filepath.Join(vol, "a", "b")
	if err := os.MkdirAll(target, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 { // stacked, as a container with bidirectional propagation can do
		if err := unix.Mount(precious, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(vol, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(keep, filepath.Join(vol, "file"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, filepath.Join(vol, "link")); err != nil {
		t.Fatal(err)
	}
	deep := vol
	for range 300 {
		deep = filepath.Join(deep, "d")
		if err := os.Mkdir(deep, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		if err := os.WriteFile(filepath.Join(vol, strings.Repeat("n", i%200+1)+string(rune('a'+i/200))), nil,
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Remove(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if err := w.Remove(t.Context(), "u1"); err != nil {
		t.Errorf("second time: %v", err)
	}
	if _, err := os.Stat(w.podDir("u1")); err == nil {
		t.Error("directory left")
	}
	if _, err := os.Stat(keep); err != nil {
		t.Errorf("data across a mount point was removed: %v", err)
	}
}

// The hosts file, termination messages and env files (L3.140, L3.150, L3.136).
func TestContainerFiles(t *testing.T) {
	w := newWorld(t)
	pod := podWith("u1", volume("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	vol := w.mustPrepare(pod)["v"].HostPath
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	hosts, err := w.HostsFile("u1", []byte("long content\n"))
	must(err)
	_, err = w.HostsFile("u1", []byte("short\n"))
	must(err)
	if text, err := os.ReadFile(hosts); err != nil || string(text) != "short\n" {
		t.Errorf("%q %v", text, err)
	}

	log, err := w.TerminationLog("u1", "c")
	must(err)
	if info, err := os.Stat(log); err != nil || info.Mode() != 0o666 {
		t.Errorf("termination message file: %v %v", info, err)
	}
	if second, err := w.TerminationLog("u1", "c"); err != nil || second == log {
		t.Errorf("each instance has its own: %v", err)
	}
	for range 10 {
		log, err = w.TerminationLog("u1", "c")
		must(err)
	}
	if left, err := filepath.Glob(filepath.Join(w.podDir("u1"), "termination.c.*")); err != nil ||
		len(left) != keptTerminationLogs {
		t.Errorf("a crash loop leaves %d files, %v", len(left), err)
	}
	must(os.WriteFile(log, []byte("start"+strings.Repeat("x", 4093)+"end"), 0o666))
	if text, err := w.TerminationMessage(log); err != nil || len(text) != 4096 || !strings.HasSuffix(text, "end") {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if _, err := w.TerminationMessage("/etc/passwd"); err == nil {
		t.Error("read a file that is none of ours")
	}

	must(os.WriteFile(vol+"/env", []byte("K='v'"), 0o600))
	must(os.Symlink("/etc/passwd", vol+"/evil"))
	must(unix.Mkfifo(vol+"/fifo", 0o600))
	if text, err := w.ReadFile("u1", "v", "env"); err != nil || string(text) != "K='v'" {
		t.Errorf("%q %v", text, err)
	}
	for _, name := range []string{"evil", "fifo", "../../etc-hosts", "none"} {
		if _, err := w.ReadFile("u1", "v", name); err == nil {
			t.Errorf("read %s", name)
		}
	}
}
