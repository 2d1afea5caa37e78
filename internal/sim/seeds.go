package sim

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

// Seeds is a range of runs.
type Seeds struct {
	First   uint64
	Count   uint64
	Hours   float64
	Workers int               // runs side by side; 0: one for each processor
	Done    func(done uint64) // called now and then with how many have ended; may be nil
}

// Total is what many runs did.
type Total struct {
	Runs                         uint64
	Pods, Steps, Actions, Starts int
	Crashes, Reboots, Faulty     int
	Virtual                      time.Duration
}

func (t *Total) add(r Result) {
	t.Runs++
	t.Pods += r.Pods
	t.Steps += r.Steps
	t.Actions += r.Actions
	t.Starts += r.Starts
	t.Crashes += r.Crashes
	t.Reboots += r.Reboots
	t.Virtual += r.Virtual
	if r.Faulty {
		t.Faulty++
	}
}

// RunSeeds does the runs of many seeds side by side until one breaks an invariant
// or ctx ends. The error is the *Violation of the lowest seed that is known to
// break one, or ctx's.
func RunSeeds(ctx context.Context, s Seeds) (Total, error) {
	workers := s.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var (
		mu    sync.Mutex
		next  uint64
		total Total
		found *Violation
		other error
		group sync.WaitGroup
	)
	take := func() (seed uint64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if next == s.Count || found != nil || other != nil || ctx.Err() != nil {
			return 0, false
		}
		next++
		return s.First + next - 1, true
	}
	for range workers {
		group.Go(func() {
			for {
				seed, ok := take()
				if !ok {
					return
				}
				r, err := Run(Options{Seed: seed, Hours: s.Hours})
				mu.Lock()
				var v *Violation
				switch {
				case errors.As(err, &v):
					if found == nil || v.Options.Seed < found.Options.Seed {
						found = v
					}
				case err != nil:
					other = err
				}
				total.add(r)
				if s.Done != nil && total.Runs%64 == 0 {
					s.Done(total.Runs)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	switch {
	case found != nil:
		return total, found
	case other != nil:
		return total, other
	}
	return total, ctx.Err()
}
