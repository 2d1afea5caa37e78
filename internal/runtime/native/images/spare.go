package images

import (
	"os"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/runtime/native"
)

const (
	// spareDelay leaves disk and CPU to the container that took a layer; in a burst, no layers are made ahead.
	spareDelay = 50 * time.Millisecond
	spareMost  = 4
)

// spares are empty writable layers that were made ahead, one for each of the last images that containers were
// made from: to make one takes four new files, to rename one takes none. Store.mu guards the fields. After a crash,
// the next Open removes them as layers that were not finished.
type spares struct {
	ready  []spare     // oldest first
	wanted []string    // chains
	timer  *time.Timer // runs while chains are wanted
	closed bool
}

type spare struct{ chain, dir string }

// takeSpare renames the spare layer of an image to dir; false if there is none. s.mu is held.
func (s *Store) takeSpare(chain, dir string) bool {
	i := slices.IndexFunc(s.spares.ready, func(sp spare) bool { return sp.chain == chain })
	if i < 0 {
		return false
	}
	from := s.spares.ready[i].dir
	s.spares.ready = slices.Delete(s.spares.ready, i, i+1)
	return os.Rename(from, dir) == nil
}

// wantSpare has a spare layer made for an image, some time after the last call. s.mu is held.
func (s *Store) wantSpare(chain string) {
	sp := &s.spares
	if !slices.Contains(sp.wanted, chain) {
		sp.wanted = append(sp.wanted, chain)
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
	for _, chain := range wanted[max(0, len(wanted)-spareMost):] {
		b := s.bases[chain]
		if b == nil || slices.ContainsFunc(sp.ready, func(x spare) bool { return x.chain == chain }) {
			continue
		}
		if len(sp.ready) == spareMost {
			s.dropSpares(sp.ready[0].chain)
		}
		dir, err := newLayer(s.layerDir(""), layerRecord{Chain: chain}, b.lower[0], native.IDMap{})
		if err != nil { // the next container makes its own, or reports why it can't
			klog.Background().V(2).Info("No layer was made ahead", "reason", err)
			return
		}
		sp.ready = append(sp.ready, spare{chain, dir})
	}
}

// dropSpares removes the spare layer of an image, or with "" all of them. s.mu is held.
func (s *Store) dropSpares(chain string) {
	s.spares.ready = slices.DeleteFunc(s.spares.ready, func(sp spare) bool {
		if chain != "" && sp.chain != chain {
			return false
		}
		if err := os.RemoveAll(sp.dir); err != nil { // the next start does it
			klog.Background().V(2).Info("A layer that was made ahead stays", "reason", err)
		}
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
}
