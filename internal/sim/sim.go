// Package sim runs the decisions of carob against a simulated node, runtime, and API server in
// virtual time: hours of a pod's life in milliseconds. Faults come from a seed: actions that fail
// before or after their effect, late and lost events, crashes of the agent and reboots at any
// point, clock jumps, conflicts and outages of the API, and deletions at any time.
//
// One seed is one run, and the same run each time: a run reads no clock, starts no goroutine,
// ranges over no map, and uses no other random source than the seed. Every invariant of the pod
// lifecycle has its clause (invariants.go). A broken one ends the run with the command
// that repeats it, and each can be broken on purpose (sabotage.go).
//
// Tests and the command "carob sim" drive it. It must never touch the host.
//
// Contract: docs/spec/pod-lifecycle.md.
package sim

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Options select a run.
type Options struct {
	Seed    uint64
	Hours   float64   // virtual hours before everything is deleted; 0 means 1
	Without []int     // numbers of the elements to leave out: pods, faults, actions of users
	Log     io.Writer // receives the log, one line per event; nil for none
	Digest  bool      // whether to compute Result.Digest; this takes time
	Break   string    // name of an invariant to break on purpose; the run checks only that one
}

// Result sums up a run.
type Result struct {
	Seed     uint64
	Pods     int
	Elements int           // pods, faults, and actions of users in the seed
	Steps    int           // calls of Step
	Actions  int           // begun
	Starts   int           // containers started
	Crashes  int           // of the agent, with and without the machine
	Reboots  int           // of the machine
	Faulty   bool          // whether the seed has faults
	Virtual  time.Duration // simulated time
	Digest   string        // of the whole log: the same seed has the same digest
}

// Violation is a broken invariant.
type Violation struct {
	Options   Options
	At        time.Duration // since the start of the run
	Invariant Invariant
	Pod       string // the pod; empty if the violation is about none
	Detail    string
}

// Error describes the violation and the command that repeats it.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s\n%s\nrepeat it with: %s", v.Invariant, v.Where(), v.Options.Command())
}

// Where describes in which run the violation happened, when, and the observation.
func (v *Violation) Where() string {
	who := ""
	if v.Pod != "" {
		who = v.Pod + ": "
	}
	return fmt.Sprintf("seed %d at +%v: %s%s", v.Options.Seed, v.At, who, v.Detail)
}

// Command returns the command line that repeats a run with its log.
func (o Options) Command() string {
	line := fmt.Sprintf("carob sim --seed %d --hours %g", o.Seed, o.Hours)
	if len(o.Without) > 0 {
		line += " --without " + strings.ReplaceAll(strings.Trim(fmt.Sprint(o.Without), "[]"), " ", ",")
	}
	if o.Break != "" {
		line += " --break " + o.Break
	}
	return line + " --log"
}

// epoch is the start time of every run.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	// recovery is the time without faults and actions of users in which pods must recover.
	recovery = 40 * time.Minute
	// drain is the time in which everything must end after the last deletion.
	drain = time.Hour
)

// Run executes one run. The error is a *Violation if an invariant was broken.
func Run(o Options) (r Result, err error) {
	if o.Hours <= 0 {
		o.Hours = 1
	}
	w := &world{opts: o, rand: rand.New(rand.NewPCG(o.Seed, 0x63_61_72_6f_62)), digest: fnv.New64a(), turn: plain,
		loop: NewLoop()}
	if o.Break != "" {
		if err := w.sabotage(o.Break); err != nil {
			return Result{}, err
		}
	}
	defer func() {
		r = w.result
		r.Virtual = w.loop.now.Sub(epoch)
		if o.Digest {
			r.Digest = fmt.Sprintf("%016x", w.digest.Sum64())
		}
		if p := recover(); p != nil {
			v, ok := p.(*Violation)
			if !ok {
				v = &Violation{Options: o, At: w.loop.now.Sub(epoch), Invariant: noPanic, Detail: fmt.Sprint(p)}
			}
			err = v
		}
	}()
	w.populate()
	w.loop.Run(epoch.Add(w.horizon()))
	w.endFaults()
	w.loop.Run(w.loop.now.Add(recovery))
	w.checkRecovered()
	w.deleteAll()
	w.loop.Run(w.loop.now.Add(drain))
	w.checkEnd()
	return w.result, nil
}

// element numbers one element of the run, and reports whether this run has it.
func (w *world) element() bool {
	n := w.result.Elements
	w.result.Elements++
	return !slices.Contains(w.opts.Without, n)
}
