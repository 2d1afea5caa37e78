package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// emptyDir: both media, fsGroup, and data that outlives a restart of the agent (L7.37).
func TestEmptyDir(t *testing.T) {
	w := newWorld(t)
	pod := podWith("u1", volume("disk", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		volume("mem",
			corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory,
				SizeLimit: resource.NewQuantity(1<<20, resource.BinarySI)}}))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
	vs := w.mustPrepare(pod)
	for _, name := range []string{"disk", "mem"} {
		info, err := os.Stat(vs[name].HostPath)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != fs.ModeDir|fs.ModeSetgid|0o777 || info.Sys().(*syscall.Stat_t).Gid != 77 {
			t.Errorf("%s: mode %v gid %d", name, info.Mode(), info.Sys().(*syscall.Stat_t).Gid)
		}
		if err := os.WriteFile(filepath.Join(vs[name].HostPath, "f"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		// As a container does whose program refuses a directory that others can read.
		if err := errors.Join(os.Chown(vs[name].HostPath, 1, 5), os.Chmod(vs[name].HostPath, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(vs["mem"].HostPath, &st); err != nil || int64(st.Blocks)*st.Bsize != 1<<20 {
		t.Errorf("size of the memory volume: %d, %v", int64(st.Blocks)*st.Bsize, err)
	}
	w.Manager = w.restart()
	vs = w.mustPrepare(pod)
	for _, name := range []string{"disk", "mem"} {
		if _, err := os.Stat(filepath.Join(vs[name].HostPath, "f")); err != nil {
			t.Errorf("%s lost its data: %v", name, err)
		}
		info, err := os.Stat(vs[name].HostPath)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o700 || st.Uid != 1 || st.Gid != 5 {
			t.Errorf("%s after a restart: mode %v, owner %d:%d", name, info.Mode(), st.Uid, st.Gid)
		}
	}
	if err := w.Remove(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if s := w.State(pod); s.Present || s.Mounted {
		t.Errorf("after Remove: %+v", s)
	}
}

// A start that was interrupted while it made an emptyDir: the next one makes it in full (L7.37, S4.91).
func TestEmptyDirHalfMade(t *testing.T) {
	w := newWorld(t)
	pod := podWith("u1", volume("disk", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
	if err := os.MkdirAll(w.volumeDir("u1", "disk")+preparing, 0o750); err != nil {
		t.Fatal(err)
	}
	vs := w.mustPrepare(pod)
	info, err := os.Stat(vs["disk"].HostPath)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != fs.ModeDir|fs.ModeSetgid|0o777 || info.Sys().(*syscall.Stat_t).Gid != 77 {
		t.Errorf("mode %v gid %d", info.Mode(), info.Sys().(*syscall.Stat_t).Gid)
	}
	if _, err := os.Lstat(vs["disk"].HostPath + preparing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the interrupted start made is left: %v", err)
	}
}
