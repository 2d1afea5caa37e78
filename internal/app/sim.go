package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"carob/internal/cli"
	"carob/internal/sim"
)

const (
	// simGC is the collector's target while simulating: runs are short and leave nothing.
	simGC = 800
	// simTrace is how many lines of a failed run are shown.
	simTrace = 60
)

// Simulate implements cli.Engine with package sim. False means that an invariant broke.
func (a *App) Simulate(ctx context.Context, s cli.Simulation, out, progress io.Writer) (ok bool, err error) {
	defer debug.SetGCPercent(debug.SetGCPercent(simGC))
	if s.Seeds == 1 {
		o := sim.Options{Seed: s.Seed, Hours: s.Hours, Without: s.Without, Digest: true}
		if s.Log {
			o.Log = out
		}
		r, err := sim.Run(o)
		if err != nil {
			return simFailed(ctx, err, !s.Log && len(s.Without) == 0, out)
		}
		_, err = fmt.Fprintf(out, "seed %d: %d pods, %d steps, %d actions, %d starts, %d crashes, %d reboots in %v of virtual time, log %s\n",
			r.Seed, r.Pods, r.Steps, r.Actions, r.Starts, r.Crashes, r.Reboots, r.Virtual, r.Digest)
		return true, err
	}
	t, err := sim.RunSeeds(ctx, sim.Seeds{First: s.Seed, Count: s.Seeds, Hours: s.Hours, Done: func(done uint64) {
		if done%1024 == 0 {
			fmt.Fprintf(progress, "%d of %d seeds\n", done, s.Seeds)
		}
	}})
	if err != nil {
		return simFailed(ctx, err, true, out)
	}
	_, err = fmt.Fprintf(out, "%d seeds: %d pods, %d steps, %d actions, %d starts, %d crashes, %d reboots in %v of virtual time, nothing broke\n",
		t.Runs, t.Pods, t.Steps, t.Actions, t.Starts, t.Crashes, t.Reboots, t.Virtual)
	return true, err
}

// simFailed shows what broke; with shrink the shortest run that breaks it, and what led there.
func simFailed(ctx context.Context, err error, shrink bool, out io.Writer) (bool, error) {
	var v *sim.Violation
	if !errors.As(err, &v) {
		return false, err
	}
	if shrink {
		v = sim.Shrink(ctx, v)
		for _, line := range sim.Trace(v, simTrace) {
			fmt.Fprintf(out, "%s\n", line)
		}
	}
	_, err = fmt.Fprintln(out, v)
	return false, err
}
