package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"time"

	"carob/internal/cli"
	"carob/internal/sim"
	"carob/internal/sim/seeds"
)

const (
	// simGC is the garbage collector's target during simulations: runs are short and keep nothing.
	simGC = 800
	// simTrace is the number of lines shown of a failed run.
	simTrace = 60
	// simProgress is the interval between progress messages.
	simProgress = 5 * time.Second
)

// Simulate implements cli.Engine with package sim. It returns false if an invariant was violated.
func (a *App) Simulate(ctx context.Context, s cli.Simulation, out, progress io.Writer) (ok bool, err error) {
	switch s.Of {
	case cli.SimulateCluster:
		return simulateClusters(ctx, s, out, progress)
	case cli.SimulateAutoscaler:
		return simulateAutoscalers(ctx, s, out, progress)
	}
	if s.List {
		for _, i := range sim.Invariants {
			if _, err := fmt.Fprintf(out, "%-18s %s (%s)\n", i.Name, i.Text, i.Clause); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	if s.Break != "" && !slices.ContainsFunc(sim.Invariants, func(i sim.Invariant) bool { return i.Name == s.Break }) {
		return false, unknownInvariant(s)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(simGC))
	if s.Seeds == 1 {
		return simulateOne(ctx, s, out)
	}
	printed := time.Now()
	t, err := seeds.Run(ctx,
		seeds.Range{First: s.Seed, Count: s.Seeds, Hours: s.Hours, All: s.All, Break: s.Break, Done: func(done uint64) {
			if now := time.Now(); now.Sub(printed) >= simProgress {
				printed = now
				_, _ = fmt.Fprintf(progress, "%d of %d seeds\n", done, s.Seeds)
			}
		}})
	if err != nil {
		if s.All {
			for _, b := range t.Broken {
				_, _ = fmt.Fprintf(out, "%d of %d seeds violate %s\n  %s\n", b.Times, t.Runs, b.First.Invariant,
					b.First.Where())
			}
		}
		return simFailed(ctx, err, true, out)
	}
	_, err = fmt.Fprintf(out,
		"%d seeds: %d pods, %d steps, %d actions, %d starts, %d crashes, %d reboots in %v of virtual time; %d invariants held\n",
		t.Runs, t.Pods, t.Steps, t.Actions, t.Starts, t.Crashes, t.Reboots, t.Virtual, len(sim.Invariants))
	return true, err
}

func simulateOne(ctx context.Context, s cli.Simulation, out io.Writer) (bool, error) {
	o := sim.Options{Seed: s.Seed, Hours: s.Hours, Without: s.Without, Break: s.Break, Digest: true}
	if s.Log {
		o.Log = out
	}
	r, err := sim.Run(o)
	if err != nil {
		return simFailed(ctx, err, !s.Log && len(s.Without) == 0, out)
	}
	_, err = fmt.Fprintf(out,
		"seed %d: %d pods, %d steps, %d actions, %d starts, %d crashes, %d reboots in %v of virtual time, log %s\n",
		r.Seed, r.Pods, r.Steps, r.Actions, r.Starts, r.Crashes, r.Reboots, r.Virtual, r.Digest)
	return true, err
}

// simFailed prints the violation; with shrink also the shortest run that violates the invariant,
// and the steps that led to it.
func simFailed(ctx context.Context, err error, shrink bool, out io.Writer) (bool, error) {
	var v *sim.Violation
	if !errors.As(err, &v) {
		return false, err
	}
	if shrink {
		v = seeds.Shrink(ctx, v)
		trace, cut := seeds.Trace(v, simTrace)
		if cut > 0 {
			_, _ = fmt.Fprintf(out, "(%d lines before; --log shows all)\n", cut)
		}
		for _, line := range trace {
			_, _ = fmt.Fprintln(out, line)
		}
		_, _ = fmt.Fprintln(out)
	}
	_, err = fmt.Fprintln(out, "broken:", v)
	return false, err
}
