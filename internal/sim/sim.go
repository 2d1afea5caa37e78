// Package sim runs the decisions of carob against simulated twins of the world
// in virtual time: hours of a pod's life in milliseconds, with seeded faults
// before and after an effect, late and lost events, crashes of the agent at any
// point, conflicts of the API and deletions at any time.
//
// One seed is one run, and the same run each time: nothing in here reads a clock,
// starts a goroutine, ranges over a map or draws from any other source than the
// seed. Every promise of the lifecycle machine is a named invariant (check.go);
// a broken one ends the run with the line that repeats it.
//
// Tests and the command "carob sim" drive it. It must never touch the host.
package sim

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"time"
)

// Options choose a run.
type Options struct {
	Seed  uint64
	Hours float64   // virtual hours before everything is deleted; 0 means 1
	Log   io.Writer // what happens, a line each; nil: nowhere
}

// Result is what a run did.
type Result struct {
	Seed    uint64
	Pods    int
	Steps   int           // calls of Step
	Actions int           // begun
	Starts  int           // containers started
	Crashes int           // of the agent
	Faulty  bool          // whether the seed has faults
	Virtual time.Duration // time simulated
	Digest  string        // of the whole log: same seed, same digest
}

// Violation is a broken invariant.
type Violation struct {
	Seed      uint64
	Hours     float64
	At        time.Duration // since the begin of the run
	Invariant string
	Detail    string
}

// Error names what broke and the command that repeats it.
func (v *Violation) Error() string {
	return fmt.Sprintf("seed %d at +%v: %s: %s\nrepeat with its log: SIM_SEED=%d SIM_HOURS=%g go test ./internal/sim -run TestSeeds",
		v.Seed, v.At, v.Invariant, v.Detail, v.Seed, v.Hours)
}

// epoch is when every run begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// drain is the time that everything gets to end after the last deletion.
const drain = 2 * time.Hour

// Run does one run. The error is a *Violation when an invariant broke.
func Run(o Options) (r Result, err error) {
	if o.Hours <= 0 {
		o.Hours = 1
	}
	w := &world{opts: o, rand: rand.New(rand.NewPCG(o.Seed, 0x63_61_72_6f_62)), digest: fnv.New64a()}
	w.loop.now = epoch
	defer func() {
		r = w.result
		r.Virtual = w.loop.now.Sub(epoch)
		r.Digest = fmt.Sprintf("%016x", w.digest.Sum64())
		if p := recover(); p != nil {
			v, ok := p.(*Violation)
			if !ok {
				panic(fmt.Sprintf("seed %d at +%v: %v", o.Seed, w.loop.now.Sub(epoch), p))
			}
			err = v
		}
	}()
	w.populate()
	horizon := epoch.Add(time.Duration(o.Hours * float64(time.Hour)))
	w.loop.run(horizon)
	w.calm()
	w.loop.run(horizon.Add(drain))
	w.checkEnd()
	return w.result, nil
}
