package cluster

import (
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/sim/autoscalers"
	"carob/internal/sim/devices"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/quotas"
)

// scaled is the Deployment that an autoscaler scales.
const scaled = "web-0"

// most pods that an autoscaler may request.
const mostScaled = 6

// elastic creates what only elastic worlds have: an autoscaler with the load of its target, a quota,
// and a Deployment whose pods use devices.
func (w *world) elastic() {
	if w.kind != Elastic {
		return
	}
	w.Create(w.autoscaler())
	w.Create(w.quota())
	w.Create(devices.Class())
	w.Create(devices.Template(namespace))
	d := w.deployment("train")
	d.Spec.Replicas = w.number(1, 3)
	devices.Use(&d.Spec.Template)
	w.Create(d)
	w.changeLoad()
}

// elasticParts returns the parts of a process that only elastic worlds have, and sets its admission.
func (c *process) elasticParts() []part {
	w := c.w
	s := w.options.Sabotage
	watch := fakeapi.NewWatch[*corev1.ResourceQuota](w.API)
	c.watches = append(c.watches, watch)
	admission := quotas.NewAdmission(w.API, watch, s.Quotas)
	w.Charge = func(o fakeapi.Object) error {
		err := admission.Charge(o)
		c.refused = c.refused || errors.Is(err, quotas.ErrForbidden)
		return err
	}
	load := func(*autoscalingv2.HorizontalPodAutoscaler) float64 { return w.load }
	return []part{
		devices.NewController(w.API, c.client, c.caches, s.Devices),
		autoscalers.NewController(w.API, c.client, c.caches, autoscalers.Hooks{Sabotage: s.Autoscalers, Load: load}),
		quotas.NewController(w.API, c.client, c.caches, s.Quotas),
	}
}

// limit sets the limits of a quota: sometimes less than what exists.
func (w *world) limit(q *corev1.ResourceQuota) {
	quotas.SetHard(q, int64(4+w.IntN(12)), int64(10+w.IntN(20))*unit, int64(1+w.IntN(4)))
}

// changeLoad changes the load from time to time.
func (w *world) changeLoad() {
	if !w.Faultless {
		w.load = w.Float64() * 1.5 * mostScaled * autoscalers.Target
		w.logf("load %.0f", w.load)
		w.after(w.upTo(8*time.Minute), w.changeLoad)
	}
}

func (w *world) quota() *corev1.ResourceQuota {
	q := quotas.Quota(namespace, "limit")
	w.limit(q)
	return q
}

func (w *world) autoscaler() *autoscalingv2.HorizontalPodAutoscaler {
	h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: scaled},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
			APIVersion: "apps/v1", Kind: "Deployment", Name: scaled}}}
	w.bounds(h)
	average := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
		AverageValue: resource.NewMilliQuantity(autoscalers.Target, resource.DecimalSI)}
	m := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU, Target: average}}
	switch w.IntN(3) {
	case 0:
		m = autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
			External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
				Target: average}}
	case 1:
		m = autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType,
			Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "requests"},
				Target: average}}
	}
	h.Spec.Metrics = []autoscalingv2.MetricSpec{m}
	return h
}

// bounds sets the limits and the behaviour of an autoscaler. Its windows and periods are short: sizes must be right
// half an hour after the last fault.
func (w *world) bounds(h *autoscalingv2.HorizontalPodAutoscaler) {
	h.Spec.MinReplicas = w.number(1, 3)
	h.Spec.MaxReplicas = *w.number(int(*h.Spec.MinReplicas), mostScaled)
	rules := func(least int) *autoscalingv2.HPAScalingRules {
		return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: w.number(least, 120),
			SelectPolicy: new([]autoscalingv2.ScalingPolicySelect{autoscalingv2.MaxChangePolicySelect,
				autoscalingv2.MinChangePolicySelect}[w.IntN(2)]),
			Policies: []autoscalingv2.HPAScalingPolicy{
				{Type: autoscalingv2.PodsScalingPolicy, Value: *w.number(1, 2), PeriodSeconds: *w.number(15, 60)},
				{Type: autoscalingv2.PercentScalingPolicy, Value: *w.number(50, 100),
					PeriodSeconds: *w.number(15, 60)}}}
	}
	if h.Spec.Behavior = nil; w.IntN(3) > 0 {
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(0),
			ScaleDown: rules(autoscalers.LeastWindow)}
	}
}

// changeElastic changes the autoscaler or the quota, or replaces one.
func (w *world) changeElastic() {
	all := fakeapi.All[*autoscalingv2.HorizontalPodAutoscaler](w.API)
	limits := fakeapi.All[*corev1.ResourceQuota](w.API)
	switch n := w.IntN(8); {
	case len(limits) == 0:
		w.Create(w.quota())
	case n == 7:
		w.Delete(limits[0].UID, 0)
	case n > 4:
		edit(w, limits[0], w.limit)
	case len(all) == 0:
		w.Create(w.autoscaler())
	case n == 0:
		w.Delete(all[0].UID, 0)
	default:
		edit(w, all[0], w.bounds)
	}
}

// scaledByUser is called when a user changes the size of a Deployment.
func (w *world) scaledByUser() {
	if w.carob == nil {
		return
	}
	for _, p := range w.carob.parts {
		if c, ok := p.(*autoscalers.Controller); ok {
			c.Forget()
		}
	}
}

// settleElastic sets a quota that all pods fit, and a size that an autoscaler may change: it is off while the size is 0
// (W7.21).
func (w *world) settleElastic() {
	if w.kind != Elastic {
		return
	}
	for _, q := range fakeapi.All[*corev1.ResourceQuota](w.API) {
		edit(w, q, func(q *corev1.ResourceQuota) { quotas.SetHard(q, 100, 1000*unit, 100) })
	}
	for _, d := range fakeapi.All[*appsv1.Deployment](w.API) {
		if d.Name == scaled {
			edit(w, d, func(d *appsv1.Deployment) { d.Spec.Replicas = new(max(1, *d.Spec.Replicas)) })
		}
	}
}

// autoscalersEnd checks that the size of each target is right for the load.
func (w *world) autoscalersEnd() *fakeapi.Broken {
	for _, h := range fakeapi.All[*autoscalingv2.HorizontalPodAutoscaler](w.API) {
		for _, d := range fakeapi.All[*appsv1.Deployment](w.API) {
			if d.Name != h.Spec.ScaleTargetRef.Name {
				continue
			}
			if b := autoscalers.Right(h, d, w.load); b != nil {
				return b
			}
		}
	}
	return nil
}
