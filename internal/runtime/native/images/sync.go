package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Layers are unpacked without an fsync, while the database is synced with each transaction: after a power loss it can
// name layers whose files are empty. So each layer has a label with the boot ID of the machine from its creation on.
// The store syncs the file system once after a pull or an import, in the background, and removes the label. Until
// then the compressed layers stay. If the machine has booted before that, Open unpacks them again.

// labelUnsynced is on layers whose files may not be on the disk yet. Its value is the boot ID of the time when they
// were unpacked, with syncFailed if the disk refused them. On disk: it must never change.
const labelUnsynced = "carob.dev/unsynced"

// syncFailed marks layers that cannot be synced in this boot: the kernel reports a failed write only once.
const syncFailed = " failed"

// syncDelay leaves the disk to the first containers of the image.
const syncDelay = 2 * time.Second

// syncer syncs layers in the background.
type syncer struct {
	boot  string // of the machine
	disk  *os.File
	sync  func(disk *os.File) error
	delay time.Duration
	runs  sync.WaitGroup
	done  chan struct{} // closed with closed

	round sync.Mutex // one sync at a time: the kernel reports a failed write to only one of two

	mu      sync.Mutex
	timer   *time.Timer // runs while layers wait
	pending []pendingLease
	closed  bool
}

// pendingLease keeps the compressed layers of images until their unpacked layers are synced.
type pendingLease struct {
	lease  *lease
	chains map[string]bool // of the images; empty after a restart
}

func newSyncer(cfg Config) (*syncer, error) {
	boot := cfg.bootID
	if boot == "" {
		b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, fmt.Errorf("read boot ID: %w", err)
		}
		boot = strings.TrimSpace(string(b))
	}
	// Open from the start on: the kernel reports a failed write to descriptors that were open at that time.
	disk, err := os.Open(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	s := &syncer{boot: boot, disk: disk, sync: cfg.syncDisk, delay: cfg.syncDelay, done: make(chan struct{})}
	if s.sync == nil {
		s.sync = func(f *os.File) error { return unix.Syncfs(int(f.Fd())) }
	}
	if s.delay == 0 {
		s.delay = syncDelay
	}
	return s, nil
}

// isUnsynced reports whether layers of an image may not be on the disk yet. The topmost loses its label last.
func (s *Store) isUnsynced(ctx context.Context, chain string) bool {
	info, err := s.snapshots.Stat(ctx, chain)
	return err == nil && info.Labels[labelUnsynced] != ""
}

// startSyncTimer is called with syncer.mu held.
func (s *Store) startSyncTimer() {
	y := s.syncer
	if y.timer != nil {
		return
	}
	y.timer = time.AfterFunc(y.delay, func() {
		if !y.begin() {
			return
		}
		defer y.runs.Done()
		y.round.Lock()
		defer y.round.Unlock()
		if err := s.syncLayers(context.Background()); err != nil && !errors.Is(err, errClosed) {
			klog.Background().Error(err, "Image layers are not on the disk; after a power loss they are unpacked again")
		}
	})
}

// begin reports whether a round may start.
func (y *syncer) begin() bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.timer = nil
	if !y.closed {
		y.runs.Add(1)
	}
	return !y.closed
}

// syncLayers syncs what has been unpacked until now, and then lets the compressed layers go.
func (s *Store) syncLayers(ctx context.Context) error {
	ctx = inNamespace(ctx)
	y := s.syncer
	y.mu.Lock()
	pending := y.pending
	y.pending = nil
	y.mu.Unlock()
	failed, err := s.syncMarked(ctx)
	if err != nil || failed { // the leases stay until the images are removed, or until the next boot
		y.mu.Lock()
		y.pending = append(y.pending, pending...)
		y.mu.Unlock()
		return err
	}
	for _, p := range pending {
		p.lease.end(ctx)
	}
	return s.collect(ctx)
}

// syncMarked syncs the layers that have the label and removes it. It reports whether the disk has refused layers, now
// or earlier.
func (s *Store) syncMarked(ctx context.Context) (failed bool, err error) {
	layers, err := s.unsynced(ctx)
	if err != nil {
		return false, err
	}
	layers = slices.DeleteFunc(layers, func(l unsyncedLayer) bool {
		refused := strings.HasSuffix(l.boot, syncFailed)
		failed = failed || refused
		return refused
	})
	if len(layers) == 0 {
		return failed, nil
	}
	mark := ""
	err = s.syncer.syncDisk()
	if errors.Is(err, errClosed) {
		return failed, err
	}
	if err != nil {
		mark, failed = s.syncer.boot+syncFailed, true
		err = fmt.Errorf("sync %s: %w", s.cfg.Root, err)
	}
	for _, l := range layers {
		if e := s.markLayer(ctx, l.name, mark); e != nil {
			return failed, errors.Join(err, e) // those above keep their labels
		}
	}
	return failed, err
}

var errClosed = errors.New("the image store is closed")

// syncDisk returns when the disk is synced or the store is closed. A sync cannot be interrupted; it may last long.
func (y *syncer) syncDisk() error {
	select {
	case <-y.done: // a round that waited for another, which the close ended
		return errClosed
	default:
	}
	result := make(chan error, 1)
	go func() { result <- y.sync(y.disk) }()
	select {
	case err := <-result:
		return err
	case <-y.done:
		return errClosed
	}
}

// markLayer sets the label of a layer, or removes it with "". A layer that has gone is no error.
func (s *Store) markLayer(ctx context.Context, name, value string) error {
	_, err := s.snapshots.Update(ctx, snapshots.Info{Name: name, Labels: map[string]string{labelUnsynced: value}},
		"labels."+labelUnsynced)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("mark layer %s: %w", name, err)
	}
	return nil
}

// unsyncedLayer is a layer that has the label, with its value.
type unsyncedLayer struct{ name, boot string }

// unsynced returns the layers that have the label, each after its parent. So a process that is killed while it removes
// labels leaves them on the topmost layers, which decide whether an image counts as synced.
func (s *Store) unsynced(ctx context.Context) ([]unsyncedLayer, error) {
	var layers []unsyncedLayer
	parents := map[string]string{}
	err := s.snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		parents[info.Name] = info.Parent
		if boot := info.Labels[labelUnsynced]; boot != "" && info.Kind == snapshots.KindCommitted {
			layers = append(layers, unsyncedLayer{info.Name, boot})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list layers: %w", err)
	}
	depth := func(l unsyncedLayer) (n int) {
		for name := l.name; name != ""; name = parents[name] {
			n++
		}
		return n
	}
	slices.SortStableFunc(layers, func(a, b unsyncedLayer) int { return cmp.Compare(depth(a), depth(b)) })
	return layers, nil
}

// forgetUnsynced ends the leases of an image that has been removed.
func (s *Store) forgetUnsynced(ctx context.Context, chain string) {
	s.syncer.mu.Lock()
	var ended []*lease
	s.syncer.pending = slices.DeleteFunc(s.syncer.pending, func(p pendingLease) bool {
		if !p.chains[chain] {
			return false
		}
		delete(p.chains, chain)
		if len(p.chains) == 0 {
			ended = append(ended, p.lease)
		}
		return len(p.chains) == 0
	})
	s.syncer.mu.Unlock()
	for _, l := range ended {
		l.end(ctx)
	}
}

// adoptUnsynced takes over the leases of an earlier process if images of this boot are not synced yet.
func (s *Store) adoptUnsynced(ctx context.Context) (adopted bool, err error) {
	layers, err := s.unsynced(ctx)
	if err != nil {
		return false, err
	}
	waits := map[string]bool{}
	for _, l := range layers {
		waits[l.name] = true
	}
	if !slices.ContainsFunc(s.all(), func(r *record) bool { return waits[r.chain] }) {
		return false, nil
	}
	all, err := s.leases.List(ctx)
	if err != nil {
		return false, fmt.Errorf("list leases: %w", err)
	}
	s.syncer.mu.Lock()
	defer s.syncer.mu.Unlock()
	for _, l := range all {
		s.syncer.pending = append(s.syncer.pending, pendingLease{&lease{store: s, id: l}, nil})
	}
	s.startSyncTimer()
	return true, nil
}

// removeTorn removes unsynced layers of earlier boots and all layers above them. Images that lack layers then are
// unpacked again when they are loaded.
func (s *Store) removeTorn(ctx context.Context) error {
	torn, parents, children := map[string]bool{}, map[string]string{}, map[string]int{}
	err := s.snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		parents[info.Name] = info.Parent
		children[info.Parent]++
		boot := strings.TrimSuffix(info.Labels[labelUnsynced], syncFailed)
		torn[info.Name] = boot != "" && boot != s.syncer.boot
		return nil
	})
	if err != nil {
		return fmt.Errorf("list layers: %w", err)
	}
	var below func(name string) bool
	below = func(name string) bool { return name != "" && (torn[name] || below(parents[name])) }
	maps.DeleteFunc(parents, func(name, _ string) bool { return !below(name) })
	if len(parents) == 0 {
		return nil
	}
	for len(parents) > 0 { // each round removes the topmost
		before := len(parents)
		for name, parent := range parents {
			if children[name] > 0 {
				continue
			}
			if err := s.snapshots.Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("remove layer that was not synced: %w", err)
			}
			children[parent]--
			delete(parents, name)
		}
		if len(parents) == before {
			return errors.New("remove layers that were not synced: they stand on each other")
		}
	}
	return s.collect(ctx) // the disk has room for one of each
}

// close ends the background work; what it has not done is done after the next Open.
func (y *syncer) close() error {
	y.mu.Lock()
	if y.closed {
		y.mu.Unlock()
		return nil
	}
	y.closed = true
	if y.timer != nil {
		y.timer.Stop()
	}
	y.mu.Unlock()
	close(y.done)
	y.runs.Wait()
	return y.disk.Close()
}

// lease protects what operations with its context write.
type lease struct {
	store *Store
	id    leases.Lease
	made  []string // chains of the images that were recorded
}

// release ends the lease, or has it end when the layers of its images are synced.
func (l *lease) release(ctx context.Context) {
	ctx = context.WithoutCancel(ctx) // without the lease it would be garbage
	unsynced := map[string]bool{}
	for _, chain := range l.made {
		if l.store.isUnsynced(ctx, chain) {
			unsynced[chain] = true
		}
	}
	if len(unsynced) == 0 || !l.store.holdLease(pendingLease{l, unsynced}) {
		l.end(ctx)
	}
}

// holdLease keeps a lease until the layers are synced; false if the store is closed.
func (s *Store) holdLease(p pendingLease) bool {
	s.syncer.mu.Lock()
	defer s.syncer.mu.Unlock()
	if s.syncer.closed {
		return false
	}
	s.syncer.pending = append(s.syncer.pending, p)
	s.startSyncTimer()
	return true
}

func (l *lease) end(ctx context.Context) {
	if err := l.store.leases.Delete(ctx, l.id); err != nil && !errdefs.IsNotFound(err) {
		klog.FromContext(ctx).Error(err, "Cannot delete the lease of an image operation; the next start deletes it")
	}
}
