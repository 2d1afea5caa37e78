package seeds

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"

	"carob/internal/core/podlife"
	"carob/internal/sim"
)

// shrinkRuns limits the number of runs in Shrink.
const shrinkRuns = 400

// Shrink searches for a smaller run that breaks the same invariant: fewer pods, fewer faults, fewer
// actions of users, less time. It returns the smallest one found, which may be v itself.
func Shrink(ctx context.Context, v *sim.Violation) *sim.Violation {
	best, runs := v, 0
	try := func(o sim.Options) (sim.Result, bool) {
		if runs++; runs > shrinkRuns || ctx.Err() != nil {
			return sim.Result{}, false
		}
		o.Log, o.Digest = nil, false
		r, err := sim.Run(o)
		var smaller *sim.Violation
		if !errors.As(err, &smaller) || smaller.Invariant != v.Invariant {
			return r, false
		}
		best = smaller
		return r, true
	}
	elements := 0
	if r, ok := try(v.Options); ok {
		elements = r.Elements
	}
	for again := true; again && runs < shrinkRuns; {
		again = false
		for n := 0; n < elements && runs < shrinkRuns; n++ {
			o := best.Options
			if slices.Contains(o.Without, n) {
				continue
			}
			o.Without = append(slices.Clone(o.Without), n)
			slices.Sort(o.Without)
			if _, ok := try(o); ok {
				again = true
			}
		}
		for _, part := range []float64{0.25, 0.5, 0.75} {
			o := best.Options
			if o.Hours = math.Ceil(o.Hours*part*100) / 100; o.Hours == best.Options.Hours {
				break
			}
			if r, ok := try(o); ok {
				again, elements = true, r.Elements
				break
			}
		}
	}
	return best
}

// Trace repeats the run of a violation and returns the last lines of its log about its pod (without
// probes that succeed) and about the machine. cut is the number of such lines left out.
func Trace(v *sim.Violation, lines int) (trace []string, cut int) {
	var log bytes.Buffer
	o := v.Options
	o.Log = &log
	_, _ = sim.Run(o)
	for line := range strings.Lines(log.String()) {
		line = strings.TrimSuffix(line, "\n")
		_, what, _ := strings.Cut(line, " ")
		who, does, _ := strings.Cut(what, " ")
		if who = strings.TrimSuffix(who, ":"); strings.HasPrefix(who, "pod-") && v.Pod != "" && who != v.Pod ||
			strings.HasPrefix(does, "begin probe/") || strings.HasPrefix(does, "probe ") &&
			strings.HasSuffix(does, string(podlife.ProbeSuccess)) {
			continue
		}
		trace = append(trace, line)
	}
	if cut = len(trace) - lines; cut > 0 {
		return trace[cut:], cut
	}
	return trace, 0
}
