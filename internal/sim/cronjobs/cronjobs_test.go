package cronjobs

import (
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"carob/internal/core/workload"
	"carob/internal/core/workload/cronjob"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/simtest"
)

const steps = 300

// CRONJOBS_SEEDS=N runs N seeds.
func TestSeeds(t *testing.T) {
	simtest.Seeds(t, "CRONJOBS_SEEDS", 200, func(seed uint64) error { return Run(seed, steps, Sabotage{}) })
}

// fast is a schedule whose times come half a minute early.
type fast struct{ cronjob.Schedule }

func (f fast) Next(t time.Time) time.Time {
	return f.Schedule.Next(t.Add(30 * time.Second)).Add(-30 * time.Second)
}

// Each invariant can be broken, and the checks report it.
func TestChecksFindSabotage(t *testing.T) {
	simtest.Breaks(t, map[fakeapi.Invariant]Sabotage{
		Once: {In: func(in *cronjob.Input) { // a finished Job does not report its completion time before it is deleted
			in.Jobs = slices.Clone(in.Jobs)
			for i, j := range in.Jobs {
				if workload.FinishedAs(j) != "" {
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
	}, func(seed uint64, sabotage Sabotage) error { return Run(seed, steps, sabotage) })
}
