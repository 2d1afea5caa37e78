package autoscalers

import (
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"carob/internal/core/workload"
	"carob/internal/core/workload/autoscaler"
	"carob/internal/sim/cluster"
)

// controller simulates controllers/autoscaler: a pass every 15 seconds and at each change of a spec.
type controller struct {
	w          *world
	client     *cluster.Client
	hpas, pods *cluster.Watch
	history    autoscaler.History
	generation int64 // of the last pass
	behavior   *autoscalingv2.HorizontalPodAutoscalerBehavior
	next       time.Time // pass
}

func newController(w *world, client *cluster.Client) *controller {
	c := &controller{w: w, client: client}
	c.hpas = cluster.Shared[*autoscalingv2.HorizontalPodAutoscaler](w.caches, func() {})
	c.pods = cluster.Shared[*corev1.Pod](w.caches, func() {})
	return c
}

// forget drops the state of earlier passes.
func (c *controller) forget() { c.history = autoscaler.History{} }

// turn makes a pass if one is due; false means that the process has ended.
func (c *controller) turn() bool {
	hpa, ok := c.hpas.Get(c.w.hpa).(*autoscalingv2.HorizontalPodAutoscaler)
	if !ok || c.w.Now.Before(c.next) && hpa.Generation == c.generation {
		return true
	}
	if !equality.Semantic.DeepEqual(hpa.Spec.Behavior, c.behavior) {
		// With other policies, the history is not guaranteed: the checks treat it as another autoscaler.
		c.history, c.w.checker.changes, c.behavior = autoscaler.History{}, nil, hpa.Spec.Behavior
	}
	c.next, c.generation = c.w.Now.Add(autoscaler.Period), hpa.Generation
	return !errors.Is(c.pass(hpa), cluster.ErrCrash)
}

func (c *controller) pass(hpa *autoscalingv2.HorizontalPodAutoscaler) error {
	w := c.w
	d, ok := w.Get(w.deployment).(*appsv1.Deployment)
	if !ok || w.One(30) {
		status, _ := autoscaler.Unreadable(hpa, w.Now, cluster.ErrRefused)
		return c.store(hpa, status)
	}
	in := autoscaler.Input{HPA: hpa, Now: w.Now, History: c.history, Scale: autoscaler.Scale{Wanted: *d.Spec.Replicas,
		Current: d.Status.Replicas, Selector: "app=web"}}
	if autoscaler.NeedsMetrics(hpa, in.Scale) {
		in.Pods = cluster.Seen[*corev1.Pod](c.pods)
		for i := range hpa.Spec.Metrics {
			in.Samples = append(in.Samples, w.sample(&hpa.Spec.Metrics[i]))
		}
	}
	spoiled := in
	if w.sabotage.In != nil {
		spoiled.Samples = append([]autoscaler.Sample(nil), in.Samples...)
		w.sabotage.In(&spoiled)
	}
	out := autoscaler.Plan(spoiled)
	if w.sabotage.Out != nil {
		w.sabotage.Out(&spoiled, &out)
	}
	w.checker.pass(in, &out)
	if out.Rescale != nil {
		size := *out.Rescale
		_, err := c.client.Patch(w.deployment, func(o cluster.Object) {
			if d, ok := o.(*appsv1.Deployment); ok && *d.Spec.Replicas != size {
				d.Spec.Replicas, d.Generation = new(size), d.Generation+1
				w.rescales++
			}
		})
		if errors.Is(err, cluster.ErrCrash) {
			return err
		}
		if err == nil {
			w.checker.rescaled(in.Scale.Wanted, size)
		}
		out = autoscaler.Rescaled(spoiled, out, err)
	}
	c.history = out.History
	return c.store(hpa, out.Status)
}

// store writes a status that has changed (W7.28).
func (c *controller) store(hpa *autoscalingv2.HorizontalPodAutoscaler,
	status autoscalingv2.HorizontalPodAutoscalerStatus) error {
	if equality.Semantic.DeepEqual(hpa.Status, status) {
		return nil
	}
	_, err := c.client.Update(hpa, func(o cluster.Object) {
		if h, ok := o.(*autoscalingv2.HorizontalPodAutoscaler); ok {
			h.Status = status
		}
	})
	return err
}

// sample is the response of a metrics API: the load, spread over the pods that are ready; sometimes
// late, sometimes not for all pods, sometimes wrong, sometimes nothing.
func (w *world) sample(m *autoscalingv2.MetricSpec) autoscaler.Sample {
	if w.One(8) {
		return autoscaler.Sample{Err: errors.New("the metrics API does not answer")}
	}
	load := w.load
	switch {
	case w.One(15):
		load = 0
	case w.One(15):
		load *= 10
	case w.One(10):
		load *= 0.7 // an old value
	}
	if m.Type == autoscalingv2.ExternalMetricSourceType {
		return autoscaler.Sample{Values: []int64{int64(load)}}
	}
	s := autoscaler.Sample{Pods: map[string]autoscaler.PodValue{}}
	var ready []*corev1.Pod
	for _, p := range cluster.All[*corev1.Pod](w.API) {
		if workload.Ready(p) && workload.Active(p) {
			ready = append(ready, p)
		}
	}
	for _, p := range ready {
		at := w.Now
		if w.One(6) {
			at = at.Add(-time.Duration(w.IntN(300)) * time.Second)
		}
		if !w.One(10) {
			s.Pods[p.Name] = autoscaler.PodValue{Value: int64(load) / int64(len(ready)), At: at,
				Window: 15 * time.Second}
		}
	}
	if len(s.Pods) == 0 {
		s.Err = errors.New("no metrics returned")
	}
	return s
}
