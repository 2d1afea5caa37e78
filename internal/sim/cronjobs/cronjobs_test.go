package cronjobs

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"carob/internal/core/workload/cronjob"
	"carob/internal/sim/cluster"
)

const steps = 300

// CRONJOBS_SEEDS=N runs N seeds.
func seeds() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("CRONJOBS_SEEDS"), 10, 32); err == nil {
		return n
	}
	return 200
}

func TestSeeds(t *testing.T) {
	for seed := range seeds() {
		if err := Run(seed, steps, Sabotage{}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// fast is a schedule whose times come half a minute early.
type fast struct{ cronjob.Schedule }

func (f fast) Next(t time.Time) time.Time {
	return f.Schedule.Next(t.Add(30 * time.Second)).Add(-30 * time.Second)
}

// Each invariant can be broken, and the checks report it.
func TestPromisesBreak(t *testing.T) {
	for promise, sabotage := range map[cluster.Promise]Sabotage{
		Once: {In: func(in *cronjob.Input) { // a finished Job does not report its completion time before it is deleted
			in.Jobs = slices.Clone(in.Jobs)
			for i, j := range in.Jobs {
				if cronjob.FinishedAs(j) != "" {
					in.Jobs[i] = j.DeepCopy()
					in.Jobs[i].Annotations = nil
				}
			}
		}},
		Latest:    {In: func(in *cronjob.Input) { in.Schedule = fast{in.Schedule} }},
		Alone:     {In: func(in *cronjob.Input) { in.CronJob.Spec.ConcurrencyPolicy = batchv1.AllowConcurrent }},
		Suspended: {In: func(in *cronjob.Input) { in.CronJob.Spec.Suspend = nil }},
		Forward: {Out: func(_ *cronjob.Input, out *cronjob.Output) {
			if out.Status != nil && len(out.Status.Active) == 0 {
				out.Status.LastScheduleTime = nil
			}
		}},
		Ends: {Out: func(_ *cronjob.Input, out *cronjob.Output) { out.Look = 0 }},
	} {
		noticed := false
		for seed := uint64(0); seed < 400 && !noticed; seed++ {
			var b *cluster.Broken
			noticed = errors.As(Run(seed, steps, sabotage), &b) && b.Promise == promise
		}
		if !noticed {
			t.Errorf("no check reports a broken invariant: %s", promise)
		}
	}
}
