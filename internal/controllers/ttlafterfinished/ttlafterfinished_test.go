package ttlafterfinished

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
)

// W10.1–W10.3, W13.46: to the second, not earlier, and the last stored value applies.
func TestTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		job := func(name string, ttl *int32, over bool) *batchv1.Job {
			j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
			j.Spec.TTLSecondsAfterFinished = ttl
			if over {
				j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.Now()}}
			}
			return j
		}
		api := controllertest.New(job("soon", new(int32(30)), true), job("kept", nil, true),
			job("runs", new(int32(0)), false), job("raised", new(int32(60)), true))
		refused := false
		api.Before = func(verb string, _ schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "delete" && !refused {
				refused = true
				return apierrors.NewNotFound(batchv1.Resource("jobs"), "soon") // of a webhook
			}
			return nil
		}
		jobs := source.Jobs(api)
		c, err := New(api, jobs)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() { jobs.Run(t.Context()) })
		all.Go(func() { <-jobs.Synced(); c.Run(t.Context()) })
		there := func() (out []string) {
			for _, j := range controllertest.All[*batchv1.Job](api) {
				out = append(out, j.Name)
			}
			return out
		}
		expect := func(n int) {
			t.Helper()
			synctest.Wait()
			if got := there(); len(got) != n {
				t.Errorf("after %v: %q, want %d Jobs", time.Now(), got, n)
			}
		}
		time.Sleep(29 * time.Second)
		expect(4)
		time.Sleep(2 * time.Second)
		expect(3)
		// The TTL is raised right before it expires, and the event arrives late.
		time.Sleep(28 * time.Second)
		api.Late = func() time.Duration { return 10 * time.Second }
		controllertest.Change(api, "ns", "raised",
			func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(100)) })
		time.Sleep(20 * time.Second)
		expect(3)
		time.Sleep(21 * time.Second)
		expect(2)
		controllertest.Change(api, "ns", "runs", func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.Now()}}
		})
		time.Sleep(time.Minute)
		expect(1)
	})
}
