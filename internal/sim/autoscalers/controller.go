package autoscalers

import (
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/autoscaler"
	"carob/internal/sim/fakeapi"
)

// Hooks connect a controller with its world.
type Hooks struct {
	Sabotage Sabotage
	// Load returns the load of all pods of an autoscaler's target together, in thousandths.
	Load func(*autoscalingv2.HorizontalPodAutoscaler) float64
	// Passed is called for each decision; may be nil.
	Passed func()
}

// Controller simulates controllers/autoscaler for autoscalers of Deployments: a pass every 15 seconds and at each
// change of a spec. It checks each decision.
type Controller struct {
	api        *fakeapi.API
	client     *fakeapi.Client
	hooks      Hooks
	hpas, pods *fakeapi.Watch
	known      map[types.UID]*known
}

// known is what a process keeps of an autoscaler.
type known struct {
	history    autoscaler.History
	checker    checker
	generation int64 // of the last pass
	behavior   *autoscalingv2.HorizontalPodAutoscalerBehavior
	next       time.Time // pass
}

// NewController returns the controller of a new process, which has no history (W7.13).
func NewController(api *fakeapi.API, client *fakeapi.Client, caches *fakeapi.Caches, hooks Hooks) *Controller {
	c := &Controller{api: api, client: client, hooks: hooks, known: map[types.UID]*known{}}
	c.hpas = fakeapi.Shared[*autoscalingv2.HorizontalPodAutoscaler](caches, func() {})
	c.pods = fakeapi.Shared[*corev1.Pod](caches, func() {})
	return c
}

// Forget drops the history of all autoscalers: another client has scaled a Target, which is no change by its
// autoscaler.
func (c *Controller) Forget() {
	for _, k := range c.known { // any order: each by itself
		k.history, k.checker.changes = autoscaler.History{}, nil
	}
}

// Due returns when the next pass is due.
func (c *Controller) Due() (now bool, at time.Time) {
	for _, hpa := range fakeapi.Seen[*autoscalingv2.HorizontalPodAutoscaler](c.hpas) {
		k := c.known[hpa.UID]
		if k == nil || hpa.Generation != k.generation {
			return true, time.Time{}
		}
		at = workload.Earlier(at, k.next)
	}
	return false, at
}

// Turn makes the passes that are due; false means that the process has ended.
func (c *Controller) Turn() bool {
	for _, hpa := range fakeapi.Seen[*autoscalingv2.HorizontalPodAutoscaler](c.hpas) {
		k := c.known[hpa.UID]
		if k == nil {
			k = &known{checker: checker{api: c.api}}
			c.known[hpa.UID] = k
		}
		if c.api.Now.Before(k.next) && hpa.Generation == k.generation {
			continue
		}
		if !equality.Semantic.DeepEqual(hpa.Spec.Behavior, k.behavior) {
			// With other policies, the history is not guaranteed: the checks treat it as another autoscaler.
			k.history, k.checker.changes, k.behavior = autoscaler.History{}, nil, hpa.Spec.Behavior
		}
		k.next, k.generation = c.api.Now.Add(autoscaler.Period), hpa.Generation
		if errors.Is(c.pass(k, hpa), fakeapi.ErrCrash) {
			return false
		}
	}
	return true
}

// target returns the stored Deployment that an autoscaler scales, nil for none.
func (c *Controller) target(hpa *autoscalingv2.HorizontalPodAutoscaler) *appsv1.Deployment {
	for _, d := range fakeapi.All[*appsv1.Deployment](c.api) {
		if d.Name == hpa.Spec.ScaleTargetRef.Name && d.Namespace == hpa.Namespace {
			return d
		}
	}
	return nil
}

func (c *Controller) pass(k *known, hpa *autoscalingv2.HorizontalPodAutoscaler) error {
	d := c.target(hpa)
	if d == nil || c.api.One(30) {
		status, _ := autoscaler.Unreadable(hpa, c.api.Now, fakeapi.ErrRefused)
		return c.store(hpa, status)
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		panic(err)
	}
	in := autoscaler.Input{HPA: hpa, Now: c.api.Now, History: k.history, Scale: autoscaler.Scale{
		Wanted: *d.Spec.Replicas, Current: d.Status.Replicas, Selector: selector.String()}}
	if autoscaler.NeedsMetrics(hpa, in.Scale) {
		in.Pods = selected(fakeapi.Seen[*corev1.Pod](c.pods), selector)
		for i := range hpa.Spec.Metrics {
			in.Samples = append(in.Samples, c.sample(&hpa.Spec.Metrics[i], c.hooks.Load(hpa), selector))
		}
	}
	spoiled := in
	if c.hooks.Sabotage.In != nil {
		spoiled.Samples = append([]autoscaler.Sample(nil), in.Samples...)
		c.hooks.Sabotage.In(&spoiled)
	}
	out := autoscaler.Plan(spoiled)
	if c.hooks.Sabotage.Out != nil {
		c.hooks.Sabotage.Out(&spoiled, &out)
	}
	if c.hooks.Passed != nil {
		c.hooks.Passed()
	}
	k.checker.pass(in, &out)
	if out.Rescale != nil {
		err := c.rescale(d, *out.Rescale)
		if errors.Is(err, fakeapi.ErrCrash) {
			return err
		}
		if err == nil {
			k.checker.rescaled(in, *out.Rescale)
		}
		out = autoscaler.Rescaled(spoiled, out, err)
	}
	k.history = out.History
	return c.store(hpa, out.Status)
}

func (c *Controller) rescale(d *appsv1.Deployment, size int32) error {
	_, err := c.client.Patch(d.UID, func(o fakeapi.Object) {
		if d, ok := o.(*appsv1.Deployment); ok && *d.Spec.Replicas != size {
			d.Spec.Replicas, d.Generation = new(size), d.Generation+1
		}
	})
	return err
}

// store writes a status that has changed (W7.28).
func (c *Controller) store(hpa *autoscalingv2.HorizontalPodAutoscaler,
	status autoscalingv2.HorizontalPodAutoscalerStatus) error {
	if equality.Semantic.DeepEqual(hpa.Status, status) {
		return nil
	}
	_, err := c.client.Update(hpa, func(o fakeapi.Object) {
		if h, ok := o.(*autoscalingv2.HorizontalPodAutoscaler); ok {
			h.Status = status
		}
	})
	return err
}

func selected(pods []*corev1.Pod, selector labels.Selector) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range pods {
		if selector.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out
}

// sample is the response of a metrics API: the load, spread over the pods that are ready; sometimes
// late, sometimes not for all pods, sometimes wrong, sometimes nothing.
func (c *Controller) sample(m *autoscalingv2.MetricSpec, load float64, selector labels.Selector) autoscaler.Sample {
	if c.api.One(8) {
		return autoscaler.Sample{Err: errors.New("the metrics API does not answer")}
	}
	switch {
	case c.api.One(15):
		load = 0
	case c.api.One(15):
		load *= 10
	case c.api.One(10):
		load *= 0.7 // an old value
	}
	if m.Type == autoscalingv2.ExternalMetricSourceType {
		return autoscaler.Sample{Values: []int64{int64(load)}}
	}
	s := autoscaler.Sample{Pods: map[string]autoscaler.PodValue{}}
	var ready []*corev1.Pod
	for _, p := range selected(fakeapi.All[*corev1.Pod](c.api), selector) {
		if workload.Ready(p) && workload.Active(p) {
			ready = append(ready, p)
		}
	}
	for _, p := range ready {
		at := c.api.Now
		if c.api.One(6) {
			at = at.Add(-time.Duration(c.api.IntN(300)) * time.Second)
		}
		if !c.api.One(10) {
			s.Pods[p.Name] = autoscaler.PodValue{Value: int64(load) / int64(len(ready)), At: at,
				Window: 15 * time.Second}
		}
	}
	if len(s.Pods) == 0 {
		s.Err = errors.New("no metrics returned")
	}
	return s
}
