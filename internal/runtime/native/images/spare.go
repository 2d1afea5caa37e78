package images

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/runtime/native"
	"carob/internal/runtime/native/detached"
)

const (
	// spareDelay leaves disk and CPU to the container that took a layer; in a burst, no layers are made ahead.
	spareDelay = 50 * time.Millisecond
	spareMost  = 4
)

// spares are writable layers that were made ahead, one for each of the last kinds of containers: to make one takes
// four new files, to rename one takes none. A spare is mounted already, with the mount points that these containers
// have, where the kernel has mounts that are attached nowhere; otherwise it is empty. Store.mu guards the fields.
// After a crash, the next Open removes them as layers that were not finished; their mounts end with this process.
type spares struct {
	ready  []spare             // oldest first
	wanted []kind              // oldest first
	taken  map[string]*os.File // the mounts of layers that containers have, by their keys, until they are mounted
	timer  *time.Timer         // runs while spares are wanted
	closed bool
}

// kind is what containers that can use the same spare have in common.
type kind struct {
	chain  string
	points []string
}

func (k kind) equal(o kind) bool { return k.chain == o.chain && slices.Equal(k.points, o.points) }

// spare is a layer of the chain. One with a mount has the mount points of its kind, and is of use for no other.
type spare struct {
	kind

	dir   string
	mount *os.File // nil: not mounted
}

// takeSpare renames the spare layer of an image to the layer of key; false if there is none. s.mu is held.
func (s *Store) takeSpare(want kind, key string) bool {
	i := slices.IndexFunc(s.spares.ready, func(sp spare) bool {
		return sp.equal(want) || sp.chain == want.chain && sp.mount == nil
	})
	if i < 0 {
		return false
	}
	sp := s.spares.ready[i]
	s.spares.ready = slices.Delete(s.spares.ready, i, i+1)
	if err := os.Rename(sp.dir, s.layerDir(key)); err != nil {
		unmount(sp.mount)
		return false
	}
	if sp.mount != nil {
		if s.spares.taken == nil {
			s.spares.taken = map[string]*os.File{}
		}
		s.spares.taken[key] = sp.mount
	}
	return true
}

// Mounted implements native.Images.
func (s *Store) Mounted(key string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.spares.taken[key]
	delete(s.spares.taken, key)
	return f
}

// Unmounted implements native.Images.
func (s *Store) Unmounted(key string) error {
	if f := s.Mounted(key); f != nil {
		f.Close()
	}
	// The kernel leaves this in the layer of a mount with "volatile", and refuses a second mount while it is there:
	// after a power failure files may be missing. Then another container has taken the place of this one.
	if err := os.RemoveAll(filepath.Join(s.layerDir(key), "work", "work", "incompat")); err != nil {
		return fmt.Errorf("prepare layer %s for its mount: %w", key, err)
	}
	return nil
}

// wantSpare has a spare layer made, some time after the last call. s.mu is held.
func (s *Store) wantSpare(k kind) {
	sp := &s.spares
	if !slices.ContainsFunc(sp.wanted, k.equal) {
		sp.wanted = append(sp.wanted, k)
	}
	if sp.timer == nil {
		sp.timer = time.AfterFunc(spareDelay, s.makeSpares)
	} else {
		sp.timer.Reset(spareDelay)
	}
}

func (s *Store) makeSpares() {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := &s.spares
	wanted := sp.wanted
	sp.wanted = nil
	if sp.closed {
		return
	}
	for _, k := range wanted[max(0, len(wanted)-spareMost):] {
		b := s.bases[k.chain]
		if b == nil || slices.ContainsFunc(sp.ready, func(x spare) bool { return x.equal(k) }) {
			continue
		}
		if len(sp.ready) == spareMost {
			sp.ready[0].drop()
			sp.ready = slices.Delete(sp.ready, 0, 1)
		}
		dir, err := newLayer(s.layerDir(""), layerRecord{Chain: k.chain}, b.lower[0], native.IDMap{})
		if err != nil { // the next container makes its own, or reports why it can't
			klog.Background().V(2).Info("Cannot make a layer in advance", "reason", err)
			return
		}
		root, err := detached.Mount(detached.Overlay{Lower: b.lower, Upper: filepath.Join(dir, "fs"),
			Work: filepath.Join(dir, "work"), NoIndex: indexParameter(), Points: k.points})
		if err != nil { // its helper mounts it
			klog.Background().V(2).Info("A layer that was made in advance cannot be mounted", "reason", err)
		}
		sp.ready = append(sp.ready, spare{k, dir, root})
	}
}

// dropMount ends the mount of the layer of key, if it has one that was not used. s.mu is held.
func (s *Store) dropMount(key string) {
	unmount(s.spares.taken[key])
	delete(s.spares.taken, key)
}

// unmount ends a mount that was made ahead; nil is none.
func unmount(f *os.File) {
	if f != nil {
		f.Close()
	}
}

// drop removes a spare that is of no use any more.
func (sp *spare) drop() {
	unmount(sp.mount)
	if err := os.RemoveAll(sp.dir); err != nil { // the next start does it
		klog.Background().V(2).Info("A layer that was made in advance cannot be removed", "reason", err)
	}
}

// dropSpares removes the spare layers of an image, or with "" all of them. s.mu is held.
func (s *Store) dropSpares(chain string) {
	s.spares.ready = slices.DeleteFunc(s.spares.ready, func(sp spare) bool {
		if chain != "" && sp.chain != chain {
			return false
		}
		sp.drop()
		return true
	})
}

// closeSpares removes all spare layers and makes no more.
func (s *Store) closeSpares() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spares.timer != nil {
		s.spares.timer.Stop()
	}
	s.spares.closed = true
	s.dropSpares("")
	for key := range s.spares.taken {
		s.dropMount(key)
	}
}
