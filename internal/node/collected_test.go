package node

import (
	"testing"

	"carob/internal/node/metrics"
)

// An image that the agent removes to free its space is left out of the node's status at the next check, not only at the
// next regular report, and pods that need it look again.
func TestCollectedImagesAreReported(t *testing.T) {
	p := &parts{machine: &machine{meter: metrics.New()}, podLoop: &podLoop{images: make(chan struct{}, 1)}}
	for range 3 { // nobody receives meanwhile
		p.imageRemoved("age")
	}
	select {
	case <-p.podLoop.images:
	default:
		t.Error("it is not announced")
	}
}
