package usage

import (
	"context"
	"errors"
	"strconv"
	"testing"
)

// Pods may name any nodes: those whose agents never answered leave nothing behind.
func TestUnknownNodesAreForgotten(t *testing.T) {
	failed := errors.New("no such node")
	s := &Sampler{Read: func(context.Context, string) (*Summary, error) { return nil, failed }}
	for i := range 10 {
		if _, err := s.Rates(t.Context(), strconv.Itoa(i)); !errors.Is(err, failed) {
			t.Fatal(err)
		}
	}
	if len(s.nodes) != 0 {
		t.Errorf("%d nodes are left", len(s.nodes))
	}
}
