package images

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native"
)

// syncs is a disk whose syncs end when the test lets them.
type syncs struct {
	mu    sync.Mutex
	calls int
	gate  chan error // each sync takes one result
}

func (d *syncs) sync(*os.File) error {
	d.mu.Lock()
	d.calls++
	d.mu.Unlock()
	return <-d.gate
}

func (d *syncs) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

func unsyncedLayers(t *testing.T, s *Store) map[string]string {
	t.Helper()
	all, err := s.unsynced(inNamespace(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	layers := map[string]string{}
	for _, l := range all {
		layers[l.name] = l.boot
	}
	return layers
}

func leaseCount(t *testing.T, s *Store) int {
	t.Helper()
	all, err := s.leases.List(inNamespace(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

var twoLayers = []map[string]string{{"one": "1"}, {"two": "2"}}

// TestLayersAreSynced: layers are marked once the disk is synced, however late that is; then the compressed ones go.
// Another import of the same image syncs nothing.
func TestLayersAreSynced(t *testing.T) {
	disk := &syncs{gate: make(chan error)}
	s := openStore(t, Config{syncDisk: disk.sync, syncDelay: time.Millisecond})
	archive := dockerArchive(t, imageOf(t, "", twoLayers...), "app")
	mustImport(t, s, archive)
	if got := unsyncedLayers(t, s); len(got) != 2 {
		t.Errorf("not synced: %v, want two layers", got)
	}
	mounted(t, s, "c1", imageStatus(t, s, "app").Id, false) // a container need not wait
	testwait.For(t, "the sync begins", func() bool { return disk.count() == 1 })
	if got := unsyncedLayers(t, s); len(got) != 2 || leaseCount(t, s) != 1 {
		t.Errorf("before the sync ended: %v, %d leases", got, leaseCount(t, s))
	}
	disk.gate <- nil
	testwait.For(t, "the layers are marked", func() bool { return len(unsyncedLayers(t, s)) == 0 })
	testwait.For(t, "compressed layers are gone", func() bool { return leaseCount(t, s) == 0 })
	mustImport(t, s, archive)
	if leaseCount(t, s) != 0 || disk.count() != 1 {
		t.Error("an image that is on the disk is synced again")
	}
}

// A store is closed, although a sync does not end. The next one syncs what is left, without a new import.
func TestSyncNeverEnds(t *testing.T) {
	disk := &syncs{gate: make(chan error)}
	root := t.TempDir()
	s := openStore(t, Config{Root: root, bootID: "one", syncDisk: disk.sync, syncDelay: time.Millisecond})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", twoLayers...), "app"))
	testwait.For(t, "the sync begins", func() bool { return disk.count() == 1 })
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"other": "3"}), "other"))
	// As if the process were killed amid the image's removal.
	if err := s.images.Delete(inNamespace(t.Context()), "docker.io/library/other:latest"); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = openStore(t, Config{Root: root, bootID: "one", syncDisk: disk.sync, syncDelay: time.Millisecond})
	mounted(t, s, "c1", imageStatus(t, s, "app").Id, false)
	if views, err := s.viewsOnDisk(inNamespace(t.Context())); err != nil || len(views) != 1 {
		t.Errorf("layers of images %v, %v, want those of one", views, err)
	}
	disk.gate <- nil // of the first store, which is gone
	testwait.For(t, "another sync begins", func() bool { return disk.count() == 2 })
	if got := unsyncedLayers(t, s); len(got) < 2 {
		t.Errorf("not synced: %v, want at least two layers", got)
	}
	disk.gate <- nil
	testwait.For(t, "the layers are marked", func() bool { return len(unsyncedLayers(t, s)) == 0 })
	testwait.For(t, "compressed layers are gone", func() bool { return leaseCount(t, s) == 0 })
}

// Layers that the disk refused are never marked, because a second sync may not report it. They stay for the
// containers of this boot.
func TestSyncFails(t *testing.T) {
	disk := &syncs{gate: make(chan error, 2)}
	root := t.TempDir()
	s := openStore(t, Config{Root: root, bootID: "one", syncDisk: disk.sync, syncDelay: time.Millisecond})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", twoLayers[0]), "app"))
	disk.gate <- errors.New("input/output error")
	testwait.For(t, "the failure is recorded", func() bool {
		for _, boot := range unsyncedLayers(t, s) {
			return boot == "one"+syncFailed
		}
		return false
	})
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"other": "2"}), "other"))
	disk.gate <- nil
	testwait.For(t, "only the other is marked", func() bool { return len(unsyncedLayers(t, s)) == 1 })
	closeStore(t, s)
	s = openStore(t, Config{Root: root, bootID: "one", syncDisk: disk.sync, syncDelay: time.Millisecond})
	mounted(t, s, "c1", imageStatus(t, s, "app").Id, false)
	before := s.bases[s.lookup("app").chain].lower
	closeStore(t, s)
	s = openStore(t, Config{Root: root, bootID: "two", syncDisk: disk.sync, syncDelay: time.Millisecond})
	mounted(t, s, "c2", imageStatus(t, s, "app").Id, false)
	if after := s.bases[s.lookup("app").chain].lower; sameDirs(before, after) {
		t.Errorf("the layers of the failed disk are still used: %v", after)
	}
}

// A round that waits for another one does not sync any more when the store is closed meanwhile.
func TestNoSyncAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &syncs{gate: make(chan error, 1)}
		y, err := newSyncer(Config{Root: t.TempDir(), bootID: "one", syncDisk: disk.sync})
		if err == nil {
			err = y.close()
		}
		if err != nil {
			t.Fatal(err)
		}
		disk.gate <- nil
		err = y.syncDisk()
		synctest.Wait() // a sync would be in a goroutine of its own
		if !errors.Is(err, errClosed) || disk.count() != 0 {
			t.Errorf("%v, %d syncs of a closed store", err, disk.count())
		}
	})
}

// dirs are the directories of the layers.
func dirs(t *testing.T, root string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "overlay/snapshots/*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func sameDirs(a, b []string) bool {
	return slices.ContainsFunc(a, func(dir string) bool { return slices.Contains(b, dir) })
}

// Labels go from the lowest layer on: a process that is killed amid that must find the topmost ones still labelled.
func TestUnsyncedOrder(t *testing.T) {
	disk := &syncs{gate: make(chan error)}
	s := openStore(t, Config{syncDisk: disk.sync})
	var files []map[string]string
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		files = append(files, map[string]string{name: name})
	}
	mustImport(t, s, dockerArchive(t, imageOf(t, "", files...), "app"))
	got, err := s.unsynced(inNamespace(t.Context()))
	if err != nil || len(got) != len(files) {
		t.Fatalf("%d layers, %v, want %d", len(got), err, len(files))
	}
	for i, id := range identity.ChainIDs(slices.Clone(s.lookup("app").config.RootFS.DiffIDs)) {
		if got[i].name != id.String() {
			t.Errorf("layer %d is %s, want %s", i, got[i].name, id)
		}
	}
}

// TestTornLayers: after a boot, layers that were not synced are unpacked again, with all that stands on them; those
// that were synced stay. Without the compressed layers the image is forgotten.
func TestTornLayers(t *testing.T) {
	disk := &syncs{gate: make(chan error, 1)}
	root := t.TempDir()
	open := func(boot string) *Store {
		return openStore(t, Config{Root: root, bootID: boot, syncDisk: disk.sync, syncDelay: time.Millisecond})
	}
	s := open("one")
	mustImport(t, s, dockerArchive(t, imageOf(t, "", twoLayers[0]), "old"))
	disk.gate <- nil
	testwait.For(t, "the first image is on the disk", func() bool { return leaseCount(t, s) == 0 })
	synced := dirs(t, root)
	mustImport(t, s, dockerArchive(t, imageOf(t, "", append(twoLayers, map[string]string{"three": "3"})...), "app"))
	if _, err := s.Prepare(t.Context(), "c1", imageStatus(t, s, "app").Id, native.IDMap{}, nil); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	for _, dir := range dirs(t, root) {
		if !sameDirs(synced, []string{dir}) {
			if err := os.RemoveAll(dir); err != nil { // even the directory was lost
				t.Fatal(err)
			}
		}
	}
	s = open("two")
	for _, file := range []string{"one", "two", "three"} {
		dir := mounted(t, s, "of-"+file, imageStatus(t, s, "app").Id, true)
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
	if err := s.Release(t.Context(), "c1"); err != nil {
		t.Error(err)
	}
	for _, boot := range unsyncedLayers(t, s) {
		if boot != "two" {
			t.Errorf("a layer of boot %q is left", boot)
		}
	}
	if len(unsyncedLayers(t, s)) != 2 || leaseCount(t, s) != 1 {
		t.Errorf("not synced: %v, %d leases", unsyncedLayers(t, s), leaseCount(t, s))
	}
	for _, l := range []string{"of-one", "of-two", "of-three"} {
		unmountAll(t, s, l)
	}
	ctx := inNamespace(t.Context())
	all, err := s.leases.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if err := s.leases.Delete(ctx, l); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.collect(ctx); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = open("three")
	if im := imageStatus(t, s, "app"); im != nil {
		t.Errorf("an image without layers is listed: %v", im)
	}
	mounted(t, s, "c2", imageStatus(t, s, "old").Id, false)
}

func unmountAll(t *testing.T, s *Store, key string) {
	t.Helper()
	if err := s.Release(context.WithoutCancel(t.Context()), key); err != nil {
		t.Fatal(err)
	}
}

// ext4Shutdown ends all writes to a file system at once (EXT4_IOC_SHUTDOWN with
// EXT4_GOING_FLAGS_NOLOGFLUSH).
const (
	ext4Shutdown = 0x8004587d
	noLogFlush   = 2
)

// TestPowerLoss: on a real file system that loses what was not synced, an image has all its files afterwards.
// Without the labels its file is there, and empty.
func TestPowerLoss(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	base := t.TempDir()
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "d")
	err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(image, nil, 0o600), os.Truncate(image, 64<<20))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
		t.Skipf("no ext4: %v %s", err, out)
	}
	mount := func(image string) {
		if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
			t.Skipf("no loop devices: %v %s", err, out)
		}
	}
	unmount := func() { // what still uses it may go on
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Fatal(err)
		}
	}
	mount(image)
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := openStore(t, Config{Root: dir, bootID: "one"})
	body := string(bytes.Repeat([]byte("x"), 1<<20))
	mustImport(t, s, dockerArchive(t, imageOf(t, "", map[string]string{"file": body}), "app"))
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), ext4Shutdown, noLogFlush); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	_ = s.Close() // cannot write any more
	unmount()
	// What reached the disk, on another loop device: the mount namespace of a container that starts elsewhere on the
	// machine may keep the first one.
	disk, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	after := filepath.Join(base, "after")
	if err := os.WriteFile(after, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	mount(after)
	s = openStore(t, Config{Root: dir, bootID: "two"})
	ms, err := s.View(t.Context(), "c1", imageStatus(t, s, "app").Id)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(ms[0].Source, "file")); err != nil || string(got) != body {
		t.Errorf("the file has %d bytes, %v, want %d", len(got), err, len(body))
	}
	closeStore(t, s)
}
