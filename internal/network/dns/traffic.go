package dns

import (
	"context"

	apitypes "k8s.io/apimachinery/pkg/types"
)

// Routed reports whether the names of a Service, headless or not, may still resolve to a pod
// that is being deleted. Such a pod is removed from the answers before its containers get the signal
// to stop. Answers in the caches of clients are not taken into account: they are valid for 5 seconds by default.
func (s *Server) Routed(pod apitypes.UID) bool { return s.zone.leads(pod) }

// Follow implements node.Traffic.
func (s *Server) Follow(ctx context.Context, released func(pod apitypes.UID)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.zone.changed:
		}
		for _, pod := range s.zone.takeLeft() {
			released(pod)
		}
	}
}
