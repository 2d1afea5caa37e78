package images

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native"
)

// spareLayers are the names of the layers that no container has.
func spareLayers(t *testing.T, s *Store) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.cfg.Root, "rw", ".new-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (s *Store) spared() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.spares.ready)
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// TestSpareLayer: the next container of an image gets a layer that was made ahead and is like any other. Ends of
// images, closing, and a killed process leave none.
func TestSpareLayer(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, Config{Root: root})
	prepare := func(key, ref string, ids native.IDMap) string {
		t.Helper()
		if _, err := s.Prepare(t.Context(), key, imageStatus(t, s, ref).Id, ids, nil); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(s.layerDir(key), "fs")
	}
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))
	first := prepare("c1", "app", native.IDMap{})
	testwait.For(t, "a layer is made ahead", func() bool { return s.spared() == 1 })
	ahead := inode(t, filepath.Join(spareLayers(t, s)[0], "fs"))
	ids := native.IDMap{UIDs: []*cri.IDMapping{{HostId: 70000, Length: 65536}},
		GIDs: []*cri.IDMapping{{HostId: 70000, Length: 65536}}}
	if own := prepare("c2", "app", ids); inode(t, own) == ahead {
		t.Error("a container with its own IDs got it")
	}
	second := prepare("c3", "app", native.IDMap{})
	if inode(t, second) != ahead {
		t.Error("a container of the image did not get it")
	}
	var a, b syscall.Stat_t
	for _, name := range []string{".", "../work", "../" + recordFile} {
		if err := syscall.Stat(filepath.Join(first, name), &a); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Stat(filepath.Join(second, name), &b); err != nil {
			t.Fatal(err)
		}
		if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Size != b.Size {
			t.Errorf("%s: %+v, want %+v", name, b, a)
		}
	}
	mounted(t, s, "c3", imageStatus(t, s, "app").Id, false)

	for i := range spareMost + 1 { // more images than layers are kept for
		ref := fmt.Sprint("more", i)
		mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": ref}), ref))
		before := spareLayers(t, s)
		prepare(ref, ref, native.IDMap{})
		testwait.For(t, "a layer is made ahead", func() bool {
			return s.spared() == min(i+2, spareMost) && !slices.Equal(spareLayers(t, s), before)
		})
	}
	if err := s.Release(t.Context(), "more4"); err != nil {
		t.Fatal(err)
	}
	remove(t, s, "more4") // the image goes, and its layer
	if n := len(spareLayers(t, s)); n != spareMost-1 {
		t.Errorf("%d layers were made ahead, want %d", n, spareMost-1)
	}

	left := spareLayers(t, s)[0] // as a process leaves it that is killed
	if err := os.MkdirAll(filepath.Join(root, "rw", ".new-9000", "fs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("closing leaves a layer")
	}
	s = openStore(t, Config{Root: root})
	s.leftovers.done.Wait()
	if left := spareLayers(t, s); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestSpareLayerLost: a removed spare layer costs only the time to make one.
func TestSpareLayerLost(t *testing.T) {
	s := openStore(t, Config{})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))
	id := imageStatus(t, s, "app").Id
	mounted(t, s, "c1", id, false)
	testwait.For(t, "a layer is made ahead", func() bool { return s.spared() == 1 })
	if err := os.RemoveAll(spareLayers(t, s)[0]); err != nil {
		t.Fatal(err)
	}
	mounted(t, s, "c2", id, false)
}

// TestSpareMounted: a spare layer is mounted, with the mount points of the containers it was made for, which alone
// get it; its mount is given once, and does not outlive the layer.
func TestSpareMounted(t *testing.T) {
	s := openStore(t, Config{})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"etc/": "", "etc/one": "1"}), "app"))
	id := imageStatus(t, s, "app").Id
	points := []string{"/etc/hosts", "/var/run/secrets/"}
	prepare := func(key string, points []string) string {
		t.Helper()
		if _, err := s.Prepare(t.Context(), key, id, native.IDMap{}, points); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(s.layerDir(key), "fs")
	}
	ready := func(n int) {
		t.Helper()
		testwait.For(t, "layers are made ahead", func() bool { return s.spared() == n })
	}
	prepare("first", points)
	if f := s.Mounted("first"); f != nil {
		t.Error("a layer that was not made ahead is mounted")
	}
	ready(1)
	if other := prepare("other", points[:1]); exists(filepath.Join(other, "var")) || s.Mounted("other") != nil {
		t.Error("a container with other mount points got the layer")
	}
	ready(2)
	layer := prepare("same", points)
	for _, name := range []string{"etc/hosts", "var/run/secrets"} {
		if !exists(filepath.Join(layer, name)) {
			t.Errorf("%s was not made ahead", name)
		}
	}
	root := s.Mounted("same")
	if root == nil || s.Mounted("same") != nil {
		t.Fatal("the mount is not given once")
	}
	defer root.Close()
	in := fmt.Sprintf("/proc/self/fd/%d/etc/", root.Fd())
	if b, err := os.ReadFile(in + "one"); err != nil || string(b) != "1" {
		t.Errorf("the image in the mount: %q, %v", b, err)
	}
	if err := os.WriteFile(in+"two", []byte("2"), 0o600); err != nil || !exists(filepath.Join(layer, "etc/two")) {
		t.Errorf("what is written there is not in the layer: %v", err)
	}
	ready(2)
	prepare("unused", points)
	if err := s.Release(t.Context(), "unused"); err != nil {
		t.Fatal(err)
	}
	if s.Mounted("unused") != nil {
		t.Error("the mount of a layer that was removed is given")
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestMountedAgain: a layer does not cost a sync of the disk when its mount ends, and can be mounted again.
func TestMountedAgain(t *testing.T) {
	s := openStore(t, Config{})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"one": "1"}), "app"))
	id := imageStatus(t, s, "app").Id
	write := func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(mounted(t, s, "c", id, false), "two"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if _, err := os.Stat(filepath.Join(s.layerDir("c"), "work", "work", "incompat", "volatile")); err != nil {
		t.Error("the end of a mount writes the whole file system to the disk:", err)
	}
	write()
}
