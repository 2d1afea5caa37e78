package gateway

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// DrainTimeout implements node.DrainTimeouts: what the InferencePools of a pod say, also when it has left them.
func (g *Gateway) DrainTimeout(pod types.UID) *time.Duration { return g.traffic.drainTimeout(pod) }

func (t *traffic) drainTimeout(pod types.UID) (out *time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for target := range t.pods[pod] { // any order: the longest counts
		for _, p := range target.of {
			if d := p.drain(); d != nil && (out == nil || *d > *out) {
				out = d
			}
		}
	}
	return out
}

// drain is how long the pods of an InferencePool wait for their requests; nil: the pool does not set it, or this is a
// Service.
func (p *pool) drain() *time.Duration {
	if s := p.served.Load(); s != nil {
		return s.plan.Drain
	}
	return nil
}

// redrain has the pods of a pool that have left looked at again: their time has changed.
func (t *traffic) redrain(p *pool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for pod, targets := range t.pods {
		for target := range targets {
			if slices.Contains(target.of, p) {
				t.gone[pod] = true
			}
		}
	}
	poke(t.wake)
}
