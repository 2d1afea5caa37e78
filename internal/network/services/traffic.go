package services

import (
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Routed reports whether new connections may be sent to a pod that is being deleted: UseOf is
// In.
func (p *Proxy) Routed(pod types.UID) bool { return p.UseOf(pod) == In }

// Follow calls released for each pod of which Routed becomes false, until ctx is done. It reports a pod only after a
// call of Routed for it has returned true.
func (p *Proxy) Follow(ctx context.Context, released func(pod types.UID)) {
	for {
		changed := p.Changed()
		for _, pod := range p.released() {
			released(pod)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// note records which pods have left the tables with a change.
func (p *Proxy) note(gone []types.UID) {
	p.leftMu.Lock()
	defer p.leftMu.Unlock()
	if p.left == nil {
		p.left = map[types.UID]bool{}
	}
	for _, pod := range gone {
		p.left[pod] = true
	}
}

// released returns the pods that have left and are not routed any more. Those that still are, because their connections
// are not marked yet, or the kernel has refused a table, are reported by a later change.
func (p *Proxy) released() []types.UID {
	p.leftMu.Lock()
	left := slices.Collect(maps.Keys(p.left))
	p.leftMu.Unlock()
	left = slices.DeleteFunc(left, p.Routed)
	p.leftMu.Lock()
	defer p.leftMu.Unlock()
	for _, pod := range left {
		delete(p.left, pod)
	}
	return left
}
