package volume

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/node/spec"
)

// mountOf mounts what the agent has prepared, as the runtime does, and returns where.
func mountOf(t *testing.T, source string) string {
	t.Helper()
	target := filepath.Join(t.TempDir(), "target")
	info, err := os.Stat(source)
	if err != nil {
		t.Fatal(err)
	}
	if info.IsDir() {
		err = os.Mkdir(target, 0o700)
	} else {
		err = os.WriteFile(target, nil, 0o600)
	}
	if err == nil {
		err = unix.Mount(source, target, "", unix.MS_BIND, "")
	}
	if err != nil {
		t.Fatalf("mounting a subPath: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, 0); err != nil {
			t.Error(err)
		}
	})
	return target
}

// A ConfigMap that changes before a container with a subPath of it starts, or while it runs, changes nothing for that
// container; its next instance sees the new content.
func TestSubPathOfAChangedConfigMap(t *testing.T) {
	w := newWorld(t)
	w.put("cm", map[string]string{"k": "1", "f": "1"})
	group, mode := int64(4711), int32(0o640)
	pod := podWith("u1", configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm"),
		DefaultMode: &mode, Items: []corev1.KeyToPath{{Key: "k", Path: "k"}, {Key: "f", Path: "dir/sub/f"}}}))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	w.mustPrepare(pod)
	use := func(path string) string {
		t.Helper()
		got, err := w.SubPath(t.Context(), spec.SubPath{UID: "u1", Container: "c", Volume: "v", Path: path,
			Index: len(path), ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	expect := func(path, want string) {
		t.Helper()
		text, err := os.ReadFile(path)
		var st unix.Stat_t
		if err == nil {
			err = unix.Stat(path, &st)
		}
		if err != nil || string(text) != want || st.Gid != uint32(group) || st.Mode&0o777 != 0o640 {
			t.Errorf("%s: %q, mode %o, group %d, %v; want %s", path, text, st.Mode, st.Gid, err, want)
		}
	}
	change := func(value string) {
		t.Helper()
		w.put("cm", map[string]string{"k": value, "f": value})
		w.refresh(t.Context(), w.find("u1"))
	}
	file, dir, all := use("k"), use("dir"), use("..data")
	change("2")
	started := []string{mountOf(t, file), mountOf(t, dir), mountOf(t, all)}
	change("3")
	for range 2 {
		expect(started[0], "1")
		expect(filepath.Join(started[1], "sub/f"), "1")
		expect(filepath.Join(started[2], "k"), "1")
		again := use("k") // the mounts of the instance before stay what they are
		expect(again, "3")
		expect(mountOf(t, again), "3")
	}
	expect(filepath.Join(use("dir"), "sub/f"), "3")
	if err := w.Remove(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(w.writtenPod("u1")); err == nil {
		t.Error("something stays of the pod")
	}
}

// The same at any moment: all that a container sees of a file is one version.
func TestSubPathWhileAConfigMapChanges(t *testing.T) {
	w := newWorld(t)
	w.put("cm", map[string]string{"k": "0", "f": "0"})
	pod := podWith("u1", configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm"),
		Items: []corev1.KeyToPath{{Key: "k", Path: "dir/k"}, {Key: "f", Path: "dir/f"}}}))
	w.mustPrepare(pod)
	p := w.find("u1")
	var changes sync.WaitGroup
	defer changes.Wait()
	changes.Go(func() {
		for i := range 300 {
			value := []byte(strconv.Itoa(i))
			if err := w.publish(p, "v", payload{"dir/k": {data: value, mode: 0o644},
				"dir/f": {data: value, mode: 0o644}}); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 100 {
		got, err := w.SubPath(t.Context(), spec.SubPath{UID: "u1", Container: "c", Volume: "v", Path: "dir", Index: i})
		if err != nil {
			t.Fatal(err)
		}
		k, kErr := os.ReadFile(filepath.Join(got, "k"))
		f, fErr := os.ReadFile(filepath.Join(got, "f"))
		if kErr != nil || fErr != nil || string(k) != string(f) {
			t.Errorf("%s %s %v %v", k, f, kErr, fErr)
		}
	}
}
