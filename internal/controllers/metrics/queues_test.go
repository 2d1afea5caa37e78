package metrics_test

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // its provider must be registered too late, as in the product

	_ "carob/internal/controllers/metrics"
)

var runs int // families are kept for the whole process

// A queue of a library is measured, and no longer wakes the process twice a second.
func TestQueueOfALibrary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ticking := func() bool {
			all := make([]byte, 1<<20)
			return strings.Contains(string(all[:runtime.Stack(all, true)]), "updateUnfinishedWorkLoop")
		}
		runs++
		name := fmt.Sprintf("a-library's-%d", runs)
		q := workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[string](),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: name})
		synctest.Wait()
		if !ticking() {
			t.Error("the library's queues do not tick at all anymore")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if ticking() {
			t.Error("the queue still ticks")
		}
		q.Add("a")
		q.Add("b")
		if key, down := q.Get(); key != "a" || down {
			t.Errorf("got %q, %t", key, down)
		}
		q.AddRateLimited("a")
		q.Done("a")
		values := map[string]float64{}
		all, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			for _, m := range f.Metric {
				if len(m.Label) == 1 && m.Label[0].GetValue() == name {
					values[strings.TrimPrefix(f.GetName(), "workqueue_")] = m.GetCounter().GetValue() +
						m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
		want := map[string]float64{"depth": 1, "adds_total": 2, "retries_total": 1, "queue_duration_seconds": 1,
			"work_duration_seconds": 1, "unfinished_work_seconds": 0, "longest_running_processor_seconds": 0}
		if !maps.Equal(values, want) {
			t.Errorf("%v, want %v", values, want)
		}
		q.ShutDown()
	})
}
