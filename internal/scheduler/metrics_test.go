package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metrics of kube-scheduler exist under its names: attempts by their result, pods by the area of the queue.
func TestMetrics(t *testing.T) {
	RegisterMetrics()
	pendingPods.Reset() // values of schedulers in other tests
	cacheSize.Reset()
	before := figures(t)
	inWorld(t, []runtime.Object{node("n1", "2")}, func(w *world) {
		shows := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for name, v := range figures(t) {
				if gauge := strings.Contains(name, "pending_pods") || strings.Contains(name, "cache_size"); !gauge {
					v -= before[name]
				}
				if v != 0 {
					got = append(got, fmt.Sprintf("%s %g", strings.TrimPrefix(name, "scheduler_"), v))
				}
			}
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("%s:\ngot  %s\nwant %s", when, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
			}
		}
		shows("at the start", "cache_size{nodes} 1")
		gates := pod("gated", "1")
		gates.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}}
		w.create(pod("a", "1"), gates, pod("big", "2"))
		bound := []string{"cache_size{nodes} 1", "pod_scheduling_attempts 1",
			"pod_scheduling_sli_duration_seconds{1} 1", "schedule_attempts_total{default-scheduler,scheduled} 1",
			"scheduling_attempt_duration_seconds{default-scheduler,scheduled} 1"}
		shows("one fits, one does not, one must not", append(bound, "cache_size{pods} 1",
			"pending_pods{gated} 1", "pending_pods{unschedulable} 1",
			"schedule_attempts_total{default-scheduler,unschedulable} 1", "scheduling_algorithm_duration_seconds 2",
			"scheduling_attempt_duration_seconds{default-scheduler,unschedulable} 1")...)
		w.delete("big")
		w.delete("gated")
		w.delete("a")
		w.bind = func(string, string) error { return errors.New("the API is away") }
		w.create(pod("unlucky", "1"))
		shows("a binding fails", append(bound, "pending_pods{backoff} 1",
			"schedule_attempts_total{default-scheduler,error} 1",
			"schedule_attempts_total{default-scheduler,unschedulable} 1", "scheduling_algorithm_duration_seconds 3",
			"scheduling_attempt_duration_seconds{default-scheduler,error} 1",
			"scheduling_attempt_duration_seconds{default-scheduler,unschedulable} 1")...)
		w.bind = nil
		time.Sleep(time.Minute)
		synctest.Wait()
		w.on("unlucky", "n1")
		if got := figures(t); got["scheduler_pod_scheduling_sli_duration_seconds{2}"]-
			before["scheduler_pod_scheduling_sli_duration_seconds{2}"] != 1 {
			t.Errorf("the second attempt of a pod is not counted: %v", slices.Sorted(maps.Keys(got)))
		}
		w.create(withPriority(pod("first", "2"), 10))
		got := figures(t)
		for _, name := range []string{"scheduler_preemption_attempts_total", "scheduler_preemption_victims"} {
			if n := got[name] - before[name]; n != 1 {
				t.Errorf("%s is %g", name, n)
			}
		}
	})
}

// figures returns the families of the scheduler with the values of their labels: values, and of histograms their
// counts.
func figures(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), metricsSubsystem+"_") {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() +
				float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}
