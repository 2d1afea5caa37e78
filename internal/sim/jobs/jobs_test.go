package jobs

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload/job"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/simtest"
)

const steps = 300

// JOBS_SEEDS=N runs N seeds.
func TestSeeds(t *testing.T) {
	simtest.Seeds(t, "JOBS_SEEDS", 200, func(seed uint64) error { return Run(seed, steps, Sabotage{}) })
}

// Each invariant can be broken, and the checks report it.
func TestChecksFindSabotage(t *testing.T) {
	simtest.Breaks(t, map[fakeapi.Invariant]Sabotage{
		Once: {In: func(in *job.Input) { in.Job.Status.UncountedTerminatedPods = nil }},
		Kept: {Early: true},
		Indexes: {In: func(in *job.Input) {
			if !job.Finished(in.Job) {
				in.Job.Status.CompletedIndexes = ""
			}
		}},
		NoMore:    {Stale: true},
		Suspended: {In: func(in *job.Input) { in.Job.Spec.Suspend = nil }},
		Over: {In: func(in *job.Input) {
			if job.Finished(in.Job) {
				in.Job.Status.Conditions = nil
			}
		}},
		LetGo: {Orphans: true},
		Ends:  {Out: func(_ *job.Input, out *job.Output) { out.Look = 0 }},
	}, func(seed uint64, sabotage Sabotage) error { return Run(seed, steps, sabotage) })
}

// The seeds cover their subject: Jobs with each end and in both modes, with failed pods.
func TestSeedsCoverTheirSubject(t *testing.T) {
	reached := map[string]int{}
	for seed := range uint64(60) {
		before := Sabotage{Out: func(in *job.Input, out *job.Output) {
			if out.Status == nil {
				return
			}
			for _, c := range out.Status.Conditions {
				reached[string(c.Type)+string(c.Status)]++
			}
			if out.Status.Failed > 0 && in.Job.Spec.CompletionMode != nil {
				reached["failed of an index"]++
			}
		}}
		if err := Run(seed, steps, before); err != nil {
			t.Fatal(err)
		}
	}
	yes := string(corev1.ConditionTrue)
	for _, what := range []string{string(batchv1.JobComplete) + yes, string(batchv1.JobFailed) + yes,
		string(batchv1.JobSuspended) + yes, string(batchv1.JobSuccessCriteriaMet) + yes, "failed of an index"} {
		if reached[what] < 5 {
			t.Errorf("%s: %d times", what, reached[what])
		}
	}
}
