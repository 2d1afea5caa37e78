package podlife

import (
	"math"
	"slices"
	"testing"
	"time"
)

// A start that failed for want of an object is tried again when the object may have come: before the failure was
// reported, right after it, or later. An object that changes all the time has it tried at most once a second. Other
// failures wait for their time, and so does what has no arrival.
func TestArrivals(t *testing.T) {
	missing, other := &Failure{Reason: "CreateContainerConfigError", Message: "no such config map", Missing: true},
		&Failure{Reason: "CreateContainerError", Message: "no space"}
	at := func(seconds ...float64) []time.Duration {
		var list []time.Duration
		for _, s := range seconds {
			list = append(list, time.Duration(math.Round(s*1000))*time.Millisecond)
		}
		return list
	}
	every := func(from, to time.Duration) []time.Duration {
		var list []time.Duration
		for d := from; d < to; d += 10 * time.Millisecond {
			list = append(list, d)
		}
		return list
	}
	for _, c := range []struct {
		name    string
		failure *Failure
		arrive  []time.Duration
		starts  []time.Duration // in the first 40 s; each takes 50 ms
	}{
		{"never", missing, nil, at(0, 1.05, 3.1, 7.15, 15.2, 25.25, 35.3)},
		{"late", missing, at(20), at(0, 1.05, 3.1, 7.15, 15.2, 20, 30.05)},
		{"during a start", missing, at(7.17), at(0, 1.05, 3.1, 7.15, 8, 18.05, 28.1, 38.15)},
		{"right after a failure", missing, at(7.3), at(0, 1.05, 3.1, 7.15, 8, 18.05, 28.1, 38.15)},
		{"twice", missing, at(20, 22), at(0, 1.05, 3.1, 7.15, 15.2, 20, 22, 32.05)},
		{"another failure", other, at(7.17, 20), at(0, 1.05, 3.1, 7.15, 15.2, 25.25, 35.3)},
		{"all the time", missing, every(20*time.Second, 24*time.Second),
			at(0, 1.05, 3.1, 7.15, 15.2, 20, 21.05, 22.1, 23.15, 24.2, 34.25)},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, in := steady()
			in.Observed.Containers = nil
			in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
			in.Pod.Spec.Containers = in.Pod.Spec.Containers[:1]
			began := in.Now
			var starts []time.Duration
			var s State
			ends, wake := time.Time{}, began
			for ; in.Now.Sub(began) < 40*time.Second; in.Now = in.Now.Add(10 * time.Millisecond) {
				in.Done = nil
				if in.Now.Equal(ends) {
					in.Done = []Outcome{{Key: "start/a/0", At: in.Now, Err: c.failure}}
				}
				arrived := slices.Contains(c.arrive, in.Now.Sub(began))
				if arrived {
					in.Arrivals++
				}
				if !arrived && in.Done == nil && (wake.IsZero() || in.Now.Before(wake)) {
					continue // as a driver: nothing else has it decide
				}
				var out Output
				s, out = Step(s, in)
				wake = out.Wake
				if begins(out, "start/a/0") {
					starts, ends = append(starts, in.Now.Sub(began)), in.Now.Add(50*time.Millisecond)
				}
				wait := s.Last.ContainerStatuses[0].State.Waiting
				if in.Now.Sub(began) > time.Second && wait.Reason != c.failure.Reason {
					t.Fatalf("it waits for %v", wait)
				}
			}
			if !slices.Equal(starts, c.starts) {
				t.Errorf("starts %v, want %v", starts, c.starts)
			}
		})
	}
}
