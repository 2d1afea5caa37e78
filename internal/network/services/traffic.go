package services

import (
	"context"
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

func (p *Proxy) released() []types.UID {
	p.leftMu.Lock()
	var left []types.UID
	for pod := range p.left {
		if !p.reopen.pending(pod) { // otherwise the next change reports it
			left = append(left, pod)
			delete(p.left, pod)
		}
	}
	p.leftMu.Unlock()
	return slices.DeleteFunc(left, p.Routed)
}
