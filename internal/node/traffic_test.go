package node

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// part is a part of the data plane with results that the test sets.
type part struct {
	routed   map[types.UID]bool
	requests int
}

func (p *part) Routed(pod types.UID) bool { p.requests++; return p.routed[pod] }

func (p *part) Follow(context.Context, func(types.UID)) {}

// The connections that wait in a pod are checked once no part sends more, and only if one did: other pods do not wait.
func TestRouted(t *testing.T) {
	a, b, queues := &part{routed: map[types.UID]bool{}}, &part{routed: map[types.UID]bool{}},
		&part{routed: map[types.UID]bool{"served": true, "other": true}}
	waits := routed([]Traffic{a, b}, queues)
	if waits("other") || queues.requests > 0 {
		t.Errorf("a pod of no Service waits, %d looks", queues.requests)
	}
	for _, step := range []struct {
		name        string
		a, b, queue bool
		want        bool
		looks       int
	}{
		{"both", true, true, true, true, 0},
		{"the second", false, true, true, true, 0},
		{"none, connections wait", false, false, true, true, 1},
		{"a part again", true, false, true, true, 0},
		{"none, connections still wait", false, false, true, true, 1},
		{"none, all accepted", false, false, false, false, 1},
		{"asked again", false, false, true, false, 0},
	} {
		a.routed["served"], b.routed["served"], queues.routed["served"] = step.a, step.b, step.queue
		queues.requests = 0
		if got := waits("served"); got != step.want || queues.requests != step.looks {
			t.Errorf("%s: %v after %d looks", step.name, got, queues.requests)
		}
	}
	if waits := routed([]Traffic{a}, nil); waits("served") {
		t.Error("nobody looks, and the pod waits")
	}
	if routed(nil, queues) != nil {
		t.Error("without a data plane nobody needs to ask")
	}
}

type bounding struct {
	part
	bounds map[types.UID]time.Duration
}

func (b *bounding) DrainTimeout(pod types.UID) *time.Duration {
	if d, ok := b.bounds[pod]; ok {
		return &d
	}
	return nil
}

// The longest time that a part sets for a pod counts; most parts set none.
func TestDrainTimeout(t *testing.T) {
	if drainTimeout([]Traffic{&part{}}) != nil {
		t.Error("no part can set a time, and one is looked for")
	}
	get := drainTimeout([]Traffic{&part{}, &bounding{bounds: map[types.UID]time.Duration{"a": time.Minute, "z": 0}},
		&bounding{bounds: map[types.UID]time.Duration{"a": time.Second, "b": time.Hour}}})
	for pod, want := range map[types.UID]time.Duration{"a": time.Minute, "b": time.Hour, "z": 0} {
		if got := get(pod); got == nil || *got != want {
			t.Errorf("%s: %v", pod, got)
		}
	}
	if got := get("c"); got != nil {
		t.Error(*got)
	}
}
