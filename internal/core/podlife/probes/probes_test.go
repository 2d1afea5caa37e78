package probes

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// L5.15: a result takes effect after as many consecutive runs as its threshold.
func TestThresholds(t *testing.T) {
	spec := &corev1.Probe{SuccessThreshold: 2, FailureThreshold: 3}
	var r Record
	for i, step := range []struct {
		raw, want Result
		reached   bool
	}{
		{Failure, None, false}, {Failure, None, false}, {Success, None, false}, {Failure, None, false},
		{Failure, None, false}, {Failure, Failure, true}, {Success, Failure, false}, {Success, Success, true},
		{Success, Success, true},
	} {
		if reached := r.Ran(spec, step.raw); reached != step.reached || r.Result != step.want {
			t.Errorf("run %d: %d, reached %v; want %d, %v", i, r.Result, reached, step.want, step.reached)
		}
	}
}

// L5.12: a new instance inherits the count, not the result.
func TestResetKeepsTheCount(t *testing.T) {
	spec := &corev1.Probe{}
	var r Record
	r.Ran(spec, Failure)
	r.Ran(spec, Failure)
	r.Reset("b", Success, time.Time{})
	if r.Result != Success || !r.Ran(spec, Failure) {
		t.Errorf("the third failure does not count: %+v", r)
	}
	r.Hold()
	if !r.Held || r.Count != 0 {
		t.Errorf("held, but %+v", r)
	}
}

// L5.16: an error of the prober is tried again at once, and the third in a row is reported.
func TestErrors(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var r Record
	for i, want := range []bool{true, true, false, true} {
		if again := r.Errored(now); again != want {
			t.Errorf("error %d: again %v", i, again)
		}
	}
}

// L5.11: a run that is late moves the next ones; one in time does not.
func TestBegin(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := Record{Next: now.Add(-time.Second)}
	r.Begin(now, 10*time.Second)
	if want := now.Add(9 * time.Second); !r.Next.Equal(want) {
		t.Errorf("next at %v, want %v", r.Next, want)
	}
	r.Begin(now.Add(time.Minute), 10*time.Second)
	if want := now.Add(70 * time.Second); !r.Next.Equal(want) {
		t.Errorf("next at %v, want %v", r.Next, want)
	}
	for _, name := range []string{"a", "b", "c"} {
		if s := Spread("uid", name, "Liveness", time.Second); s < 0 || s >= time.Second {
			t.Errorf("%s is spread by %v", name, s)
		}
	}
}
