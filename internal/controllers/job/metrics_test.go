package job

import (
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/metrics"
)

// The metrics of a Job with three indexes, one of which fails once.
func TestMetrics(t *testing.T) {
	metrics.Register()
	before := controllertest.Metrics(t)
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(newJob(func(s *batchv1.JobSpec) {
			s.CompletionMode = new(batchv1.IndexedCompletion)
			s.Completions, s.Parallelism = new(int32(3)), new(int32(3))
		}))
		r := start(t.Context(), t, api)
		defer r.Stop()
		bad := ""
		for range 100 {
			time.Sleep(time.Second)
			node(api, func(p *corev1.Pod) (int32, bool) {
				if bad == "" {
					bad = p.Name
				}
				if p.Name == bad {
					return 1, true
				}
				return 0, true
			})
		}
		if !finished(api) {
			t.Fatal("the Job has not finished")
		}
	})
	controllertest.Grown(t, before, map[string]float64{
		"job_controller_jobs_finished_total{Indexed,CompletionsReached,succeeded}":         1,
		"job_controller_job_pods_finished_total{Indexed,succeeded}":                        3,
		"job_controller_job_pods_finished_total{Indexed,failed}":                           1,
		"job_controller_job_finished_indexes_total{global,succeeded}":                      3,
		"job_controller_job_pods_creation_total{new,succeeded}":                            3,
		"job_controller_job_pods_creation_total{recreate_terminating_or_failed,succeeded}": 1,
		"job_controller_job_syncs_total{pods_created,Indexed,success}":                     2,
		"job_controller_job_sync_duration_seconds{pods_created,Indexed,success}":           2,
		"job_controller_terminated_pods_tracking_finalizer_total{add}":                     4,
		"job_controller_terminated_pods_tracking_finalizer_total{delete}":                  4,
		"workqueue_depth{job}": 0,
	})
}
