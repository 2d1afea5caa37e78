// Package seeds runs package sim for a range of seeds, and shrinks a run that breaks an invariant to the smallest one
// that still does. Tests and the command "carob sim" use it. The runs themselves have no goroutine; here one worker for
// each processor runs them.
package seeds

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"carob/internal/sim"
)

// Range is a range of seeds, and how to run them.
type Range struct {
	First   uint64
	Count   uint64
	Hours   float64
	Workers int               // concurrent runs; 0: one for each processor
	Break   string            // an invariant to break on purpose
	All     bool              // continue after a broken invariant
	Done    func(done uint64) // called after each run with the number of finished runs; may be nil
}

// Broken is an invariant that some runs broke.
type Broken struct {
	First *sim.Violation // of the lowest seed
	Times int
}

// Total sums up the results of many runs.
type Total struct {
	Runs                         uint64
	Pods, Steps, Actions, Starts int
	Crashes, Reboots, Faulty     int
	Virtual                      time.Duration
	Broken                       []Broken // one entry per invariant, the most often broken one first
}

func (t *Total) note(v *sim.Violation) {
	for i := range t.Broken {
		if b := &t.Broken[i]; b.First.Invariant == v.Invariant {
			b.Times++
			if v.Options.Seed < b.First.Options.Seed {
				b.First = v
			}
			return
		}
	}
	t.Broken = append(t.Broken, Broken{First: v, Times: 1})
}

func (t *Total) add(r sim.Result) {
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

// Run runs many seeds concurrently until one breaks an invariant or ctx ends. The error is the
// *sim.Violation of the lowest seed known to break one, or ctx's error. Total lists the broken
// invariants, all of them with Range.All.
func Run(ctx context.Context, s Range) (Total, error) {
	workers := s.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var (
		mu    sync.Mutex
		next  uint64
		total Total
		other error
		group sync.WaitGroup
	)
	take := func() (seed uint64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if next == s.Count || len(total.Broken) > 0 && !s.All || other != nil || ctx.Err() != nil {
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
				r, err := sim.Run(sim.Options{Seed: seed, Hours: s.Hours, Break: s.Break})
				mu.Lock()
				var v *sim.Violation
				switch {
				case errors.As(err, &v):
					total.note(v)
				case err != nil:
					other = err
				}
				total.add(r)
				if s.Done != nil {
					s.Done(total.Runs)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	slices.SortFunc(total.Broken, func(a, b Broken) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.First.Options.Seed, b.First.Options.Seed))
	})
	if other != nil {
		return total, other
	}
	if len(total.Broken) > 0 {
		return total,
			slices.MinFunc(total.Broken,
				func(a, b Broken) int { return cmp.Compare(a.First.Options.Seed, b.First.Options.Seed) }).First
	}
	return total, ctx.Err()
}
