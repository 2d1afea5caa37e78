package node

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Traffic is one part of the data plane: the table of Services, DNS, a gateway. The agent asks it before it ends the
// containers of a deleted pod (N8.13).
type Traffic interface {
	// Routed reports whether new connections may be opened to the pod as to one that goes on. It is false for a pod
	// that this part does not know, and as soon as it has in force that the pod is being deleted. It must not block.
	Routed(pod types.UID) bool
	// Follow calls released for each pod of which Routed becomes false, until ctx ends. A call too many is harmless.
	Follow(ctx context.Context, released func(pod types.UID))
}

// routed asks all parts of the data plane; nil when there are none.
func routed(parts []Traffic) func(types.UID) bool {
	if len(parts) == 0 {
		return nil
	}
	return func(pod types.UID) bool {
		return slices.ContainsFunc(parts, func(t Traffic) bool { return t.Routed(pod) })
	}
}
