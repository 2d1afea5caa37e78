package sim

import (
	"testing"
	"time"
)

// A reading behaves like the result of time.Now: the monotonic part counts between two of them, the
// wall clock in all other comparisons.
func TestReading(t *testing.T) {
	a := reading(epoch.Add(time.Hour+time.Nanosecond), time.Minute)
	b := reading(epoch, time.Minute+time.Second) // the clock was set back by an hour
	if d := b.Sub(a); d != time.Second {
		t.Errorf("%v passed by the monotonic clock, not a second", d)
	}
	if !a.Round(0).Equal(epoch.Add(time.Hour + time.Nanosecond)) {
		t.Errorf("the wall says %v", a.Round(0))
	}
	if !b.Before(epoch.Add(time.Nanosecond)) || b.Before(a) {
		t.Error("it is not compared by the wall with times that have no other reading")
	}
	if text, err := a.MarshalText(); err != nil || string(text) != "2026-01-01T01:00:00.000000001Z" {
		t.Errorf("it is written as %s, %v", text, err)
	}
}
