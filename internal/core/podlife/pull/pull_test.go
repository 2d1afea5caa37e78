package pull

import (
	"testing"
	"time"
)

// L3.113: 10 s, doubled with each failure up to 300 s; it starts over after ten minutes without one.
func TestDelayDoubles(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var all Backoffs
	for _, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		b := all.Failed("nginx", "ErrImagePull", "no route to host", now)
		if b.Delay != want*time.Second || !b.Until().Equal(now.Add(want*time.Second)) {
			t.Errorf("the delay is %v until %v, not %v s", b.Delay, b.Until(), int(want))
		}
		now = b.Until()
	}
	if b := all.Failed("nginx", "ErrImagePull", "", now.Add(11*time.Minute)); b.Delay != initialDelay {
		t.Errorf("after eleven minutes it is %v", b.Delay)
	}
	if all.Of("redis") != nil {
		t.Error("another image has a back-off")
	}
	all.Forget("nginx")
	if all.Of("nginx") != nil {
		t.Error("it is not forgotten")
	}
}
