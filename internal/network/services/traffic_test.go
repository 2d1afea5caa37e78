package services

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	core "carob/internal/core/netplan/services"
)

// A pod that leaves while the kernel refuses the table is reported once the table is right, not never.
func TestPodLeavesWhileTheTableIsRefused(t *testing.T) {
	p := New(Config{})
	refused := &plane{state: core.New(false, core.Node{}), broken: true}
	p.planes, p.running = []*plane{refused}, true
	p.note([]types.UID{"pod"})
	for range 2 {
		if got := p.released(); len(got) > 0 {
			t.Fatalf("%v reported while every pod may be routed", got)
		}
	}
	refused.broken = false
	if got := p.released(); !slices.Equal(got, []types.UID{"pod"}) {
		t.Errorf("reported %v", got)
	}
	if got := p.released(); len(got) > 0 {
		t.Errorf("reported again: %v", got)
	}
}
