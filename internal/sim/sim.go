// Package sim runs the decisions of carob against simulated twins of the world
// in virtual time: hours of a pod's life in milliseconds, with seeded faults
// before and after an effect, late and lost events, crashes of the agent and
// reboots of the machine at any point, jumps of the clock, conflicts and outages
// of the API and deletions at any time.
//
// One seed is one run, and the same run each time: a run reads no clock, starts no
// goroutine, ranges over no map and draws from no other source than the seed.
// Every promise of the lifecycle machine is an Invariant with its clause
// (promises.go); a broken one ends the run with the line that repeats it, and each
// can be broken on purpose (sabotage.go).
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

// Options choose a run.
type Options struct {
	Seed    uint64
	Hours   float64   // virtual hours before everything is deleted; 0 means 1
	Without []int     // elements of the run to leave out, by number: pods, faults, what users do
	Log     io.Writer // what happens, a line each; nil: nowhere
	Digest  bool      // whether Result.Digest is wanted; it costs time
	Break   string    // a promise to break on purpose, by name: the run looks for that one
}

// Result is what a run did.
type Result struct {
	Seed     uint64
	Pods     int
	Elements int           // pods, faults and deeds of users that the seed has
	Steps    int           // calls of Step
	Actions  int           // begun
	Starts   int           // containers started
	Crashes  int           // of the agent, with and without the machine
	Reboots  int           // of the machine
	Faulty   bool          // whether the seed has faults
	Virtual  time.Duration // time simulated
	Digest   string        // of the whole log: same seed, same digest
}

// Violation is a broken invariant.
type Violation struct {
	Options   Options
	At        time.Duration // since the begin of the run
	Invariant Invariant
	Pod       string // whose promise it was; empty: nobody's
	Detail    string
}

// Error names what broke and the command that repeats it.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s\n%s\nrepeat it with: %s", v.Invariant, v.Where(), v.Options.Command())
}

// Where says in which run it broke, when, and what was seen.
func (v *Violation) Where() string {
	who := ""
	if v.Pod != "" {
		who = v.Pod + ": "
	}
	return fmt.Sprintf("seed %d at +%v: %s%s", v.Options.Seed, v.At, who, v.Detail)
}

// Command is the line that repeats a run with its log.
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

// epoch is when every run begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	// recovery is the time without faults and deeds that pods get to come back.
	recovery = 40 * time.Minute
	// drain is the time that everything gets to end after the last deletion.
	drain = time.Hour
)

// Run does one run. The error is a *Violation when an invariant broke.
func Run(o Options) (r Result, err error) {
	if o.Hours <= 0 {
		o.Hours = 1
	}
	w := &world{opts: o, rand: rand.New(rand.NewPCG(o.Seed, 0x63_61_72_6f_62)), digest: fnv.New64a(), turn: plain}
	w.loop.now = epoch
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
	w.loop.run(epoch.Add(w.horizon()))
	w.calm()
	w.loop.run(w.loop.now.Add(recovery))
	w.checkRecovered()
	w.deleteAll()
	w.loop.run(w.loop.now.Add(drain))
	w.checkEnd()
	return w.result, nil
}

// element numbers one thing of the run, and tells whether this run has it.
func (w *world) element() bool {
	n := w.result.Elements
	w.result.Elements++
	return !slices.Contains(w.opts.Without, n)
}
