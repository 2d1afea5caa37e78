package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"carob/internal/base/instance"
	"carob/internal/cli"
	"carob/internal/sim"
	"carob/internal/sim/autoscalers"
	"carob/internal/sim/cluster"
	"carob/internal/sim/fakeapi"
)

// simulateClusters runs the simulator of a cluster.
func simulateClusters(ctx context.Context, s cli.Simulation, out, progress io.Writer) (bool, error) {
	invariants := cluster.Invariants()
	if s.List {
		for _, p := range invariants {
			if err := printInvariant(out, p.Name, p.Invariant); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	var total cluster.Result
	run := func(seed uint64, add func(func())) error {
		o := cluster.Options{Seed: seed, Hours: s.Hours}
		if s.Log {
			o.Log = out
		}
		if s.Break != "" { // each run has its own: a way to break something may count its calls
			for _, p := range cluster.Invariants() {
				if p.Name == s.Break {
					o.Sabotage = p.Sabotage
				}
			}
		}
		r, err := cluster.Run(o)
		add(func() {
			total.Pods, total.Starts, total.Writes = total.Pods+r.Pods, total.Starts+r.Starts, total.Writes+r.Writes
			total.Crashes, total.Virtual = total.Crashes+r.Crashes, total.Virtual+r.Virtual
			total.Settled = max(total.Settled, r.Settled)
		})
		return err
	}
	names := make([]string, 0, len(invariants))
	for _, p := range invariants {
		names = append(names, p.Name)
	}
	ok, err := simulateSeeds(ctx, s, names, out, progress, run)
	if err != nil || !ok {
		return ok, err
	}
	_, err = fmt.Fprintf(out, "%d seeds: %d pods, %d starts, %d writes, %d crashes in %v of virtual time; all was as "+
		"wanted at most %v after the last fault; %d invariants held, and %d of pods\n", s.Seeds, total.Pods, total.Starts, total.Writes,
		total.Crashes, total.Virtual.Round(time.Second), total.Settled, len(invariants), len(sim.Invariants))
	return true, err
}

// autoscalerStep is how long a step of package autoscalers takes on average.
const autoscalerStep = 5 * time.Second

// simulateAutoscalers runs package autoscalers.
func simulateAutoscalers(ctx context.Context, s cli.Simulation, out, progress io.Writer) (bool, error) {
	invariants := autoscalers.Invariants()
	names := make([]string, 0, len(invariants))
	for _, p := range invariants {
		names = append(names, p.Name)
		if s.List {
			if err := printInvariant(out, p.Name, p.Invariant); err != nil {
				return false, err
			}
		}
	}
	if s.List {
		return true, nil
	}
	var total autoscalers.Result
	ok, err := simulateSeeds(ctx, s, names, out, progress, func(seed uint64, add func(func())) error {
		var sabotage autoscalers.Sabotage
		for _, p := range autoscalers.Invariants() {
			if p.Name == s.Break {
				sabotage = p.Sabotage
			}
		}
		r, err := autoscalers.Run(seed, int(s.Hours*float64(time.Hour/autoscalerStep)), sabotage)
		add(func() {
			total.Passes, total.Rescales = total.Passes+r.Passes, total.Rescales+r.Rescales
			total.Virtual += r.Virtual
		})
		return err
	})
	if err != nil || !ok {
		return ok, err
	}
	_, err = fmt.Fprintf(out, "%d seeds: %d passes, %d changes of a size in %v of virtual time; %d invariants held\n",
		s.Seeds, total.Passes, total.Rescales, total.Virtual.Round(time.Second), len(invariants))
	return true, err
}

func printInvariant(out io.Writer, name string, p fakeapi.Invariant) error {
	_, err := fmt.Fprintf(out, "%-18s %s\n", name, p)
	return err
}

func unknownInvariant(s cli.Simulation) error {
	return fmt.Errorf("%w --break: there is no invariant %q; `carob sim --of %s --invariants` lists them",
		instance.ErrFlag, s.Break, s.Of)
}

// simulateSeeds runs seeds on all processors until one breaks an invariant, and reports the lowest one that did. run
// calls add with functions that change totals; they run one at a time.
func simulateSeeds(ctx context.Context, s cli.Simulation, names []string, out, progress io.Writer,
	run func(seed uint64, add func(func())) error) (bool, error) {
	if s.Break != "" && !slices.Contains(names, s.Break) {
		return false, unknownInvariant(s)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(simGC))
	var (
		mu      sync.Mutex
		next    uint64
		done    uint64
		bad     error
		badAt   uint64
		printed = time.Now()
		group   sync.WaitGroup
		locked  = func(do func()) {
			mu.Lock()
			defer mu.Unlock()
			do()
		}
	)
	work := func() {
		for {
			var seed uint64
			over := false
			locked(func() {
				if over = next == s.Seeds || bad != nil || ctx.Err() != nil; !over {
					seed = s.Seed + next
					next++
				}
			})
			if over {
				return
			}
			err := run(seed, locked)
			locked(func() {
				if err != nil && (bad == nil || seed < badAt) {
					bad, badAt = err, seed
				}
				done++
				if now := time.Now(); now.Sub(printed) >= simProgress {
					printed = now
					_, _ = fmt.Fprintf(progress, "%d of %d seeds\n", done, s.Seeds)
				}
			})
		}
	}
	for range runtime.GOMAXPROCS(0) {
		group.Go(work)
	}
	group.Wait()
	if bad == nil {
		return ctx.Err() == nil, ctx.Err()
	}
	if _, ok := errors.AsType[*fakeapi.Broken](bad); !ok {
		return false, bad
	}
	line := fmt.Sprintf("carob sim --of %s --seed %d --hours %g", s.Of, badAt, s.Hours)
	if s.Break != "" {
		line += " --break " + s.Break
	}
	if s.Of == cli.SimulateCluster {
		line += " --log"
	}
	_, err := fmt.Fprintf(out, "broken: %v\nseed %d\nrepeat it with: %s\n", bad, badAt, line)
	return false, err
}
