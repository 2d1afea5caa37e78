package dns

import (
	"context"

	apitypes "k8s.io/apimachinery/pkg/types"
)

// Routed implements node.Traffic: it reports whether the names of a Service, headless or not, may still lead to a pod
// as to one that goes on. A pod that is being deleted is out of the answers before its containers are told to stop.
// Answers that clients keep are not known here: they are valid for 5 seconds by default.
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
