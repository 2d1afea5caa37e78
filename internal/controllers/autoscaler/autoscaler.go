// Package autoscaler sizes the targets of HorizontalPodAutoscalers: it drives
// core/workload/autoscaler. The controller manager runs it; it must never decide a size itself.
//
// Contract: docs/spec/workloads.md.
package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/workload/autoscaler"
)

// Kinds finds the resource of a kind.
type Kinds interface {
	// Preferred returns a kind in the version that the server prefers, for any requested version (W7.11).
	Preferred(schema.GroupKind) (inventory.Kind, bool)
	Synced() <-chan struct{}
}

// Metrics APIs are servers that users install, and that may not answer: the autoscalers that need them wait for them at
// most this long in each pass, and workers are left for the others.
const (
	workers       = 32
	metricsWithin = 10 * time.Second
)

// Controller drives autoscalers. Its key is one's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	client     kubernetes.Interface
	events     record.EventRecorder
	kinds      Kinds
	hpas, pods *source.Watch
	scales     scales
	metrics    metricsReader

	mu    sync.Mutex
	known map[string]known // by key
}

// known is the state of an autoscaler between passes.
type known struct {
	uid      types.UID
	selector labels.Selector // of its target's pods; nil before the first pass
	history  autoscaler.History
}

// scales reads and writes the scale of targets.
type scales interface {
	get(ctx context.Context, kind inventory.Kind, namespace, name string) (*autoscalingv1.Scale, error)
	put(ctx context.Context, kind inventory.Kind, s *autoscalingv1.Scale) error
}

// metricsReader reads one metric of the pods of a target.
type metricsReader interface {
	sample(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, m *autoscalingv2.MetricSpec,
		selector labels.Selector) autoscaler.Sample
}

// New returns a controller; pods are indexed by namespace.
func New(client kubernetes.Interface, events record.EventRecorder, kinds Kinds, hpas, pods *source.Watch) (*Controller,
	error) {
	raw := func() rest.Interface { return client.CoreV1().RESTClient() }
	return newController(client, events, kinds, hpas, pods, restScales{raw}, restMetrics{raw, kinds})
}

func newController(client kubernetes.Interface, events record.EventRecorder, kinds Kinds, hpas, pods *source.Watch,
	s scales, m metricsReader) (*Controller, error) {
	c := &Controller{client: client, events: events, kinds: kinds, hpas: hpas, pods: pods, scales: s, metrics: m,
		known: map[string]known{}}
	c.Reconciler = reconciler.New("horizontalpodautoscaler", workers, c.reconcile)
	err := hpas.OnChange(func(before, after metav1.Object) {
		o := after
		if o == nil {
			o = before
		}
		// Changes of the status trigger no pass: the period separates two passes (W7.10).
		old, ok := before.(*autoscalingv2.HorizontalPodAutoscaler)
		now, also := after.(*autoscalingv2.HorizontalPodAutoscaler)
		if !ok || !also || !equality.Semantic.DeepEqual(old.Spec, now.Spec) {
			c.Add(o.GetNamespace() + "/" + o.GetName())
		}
	})
	if err != nil {
		return nil, fmt.Errorf("autoscaler: watch autoscalers: %w", err)
	}
	metrics.OnRead(func() { metrics.Autoscalers.WithLabelValues().Set(float64(len(hpas.Objects().ListKeys()))) })
	return c, nil
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	hpa := source.Get[*autoscalingv2.HorizontalPodAutoscaler](c.hpas, key)
	if hpa == nil {
		c.mu.Lock()
		delete(c.known, key)
		c.mu.Unlock()
		namespace, name, _ := strings.Cut(key, "/")
		metrics.Desired.DeleteLabelValues(namespace, name)
		return 0, nil
	}
	select {
	case <-c.kinds.Synced():
	default:
		return time.Second, nil // discovery is not complete yet
	}
	began, action := time.Now(), "none"
	err := c.pass(ctx, key, hpa, &action)
	failure := "none"
	if err != nil {
		failure = "internal"
	}
	if _, invalid := schema.ParseGroupVersion(hpa.Spec.ScaleTargetRef.APIVersion); invalid != nil {
		failure = "spec"
	}
	metrics.AutoscalerPasses.WithLabelValues(action, failure).Inc()
	metrics.AutoscalerSeconds.WithLabelValues(action, failure).Observe(time.Since(began).Seconds())
	if err != nil {
		// The next pass comes at its time, whatever the result of this one (W7.10).
		klog.FromContext(ctx).V(2).Info("An autoscaler could not do its work", "autoscaler", key, "err", err)
	}
	return autoscaler.Period, nil
}

// pass handles one autoscaler and sizes its target; action becomes what it did, for the metrics.
func (c *Controller) pass(ctx context.Context, key string, hpa *autoscalingv2.HorizontalPodAutoscaler,
	action *string) error {
	kind, scale, err := c.target(ctx, hpa)
	if err != nil {
		status, events := autoscaler.Unreadable(hpa, time.Now(), err)
		c.record(hpa, events)
		return errors.Join(err, c.store(ctx, hpa, status))
	}
	in := autoscaler.Input{HPA: hpa, Now: time.Now(),
		Scale: autoscaler.Scale{Wanted: scale.Spec.Replicas, Current: scale.Status.Replicas,
			Selector: scale.Status.Selector}}
	var selector labels.Selector
	if in.Scale.Selector != "" {
		selector, in.SelectorErr = labels.Parse(in.Scale.Selector)
	}
	in.History = c.setSelector(key, hpa.UID, selector)
	if selector != nil && in.SelectorErr == nil && autoscaler.NeedsMetrics(hpa, in.Scale) {
		in.Pods = c.selected(hpa.Namespace, selector)
		in.Rivals = c.rivals(key, in.Pods)
		if len(in.Rivals) < 2 {
			in.Samples = c.samples(ctx, hpa, selector)
		}
		in.Now = time.Now() // reading metrics may have taken a while
	}
	out := autoscaler.Plan(in)
	if out.Rescale != nil {
		before, toZero := autoscaler.BeforeZero(in, out)
		if toZero {
			if hpa, err = c.write(ctx, hpa, before.Status); err != nil { // the next pass scales it
				c.keep(key, hpa.UID, out.History)
				c.record(hpa, out.Events)
				return errors.Join(out.Problem, err)
			}
		}
		err = c.rescale(ctx, kind, scale, *out.Rescale)
		switch {
		case err != nil && toZero && confirm.Unclear(err): // it may be scaled
			out = before
		case err != nil:
		case *out.Rescale > scale.Status.Replicas:
			*action = "scale_up"
		default:
			*action = "scale_down"
		}
		out = autoscaler.Rescaled(in, out, err)
	}
	metrics.Desired.WithLabelValues(hpa.Namespace, hpa.Name).Set(float64(out.Status.DesiredReplicas))
	c.keep(key, hpa.UID, out.History)
	c.record(hpa, out.Events)
	return errors.Join(out.Problem, err, c.store(ctx, hpa, out.Status))
}

// samples reads the metrics of an autoscaler.
func (c *Controller) samples(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler,
	selector labels.Selector) []autoscaler.Sample {
	ctx, cancel := context.WithTimeoutCause(ctx, metricsWithin,
		fmt.Errorf("no answer of the metrics APIs within %v", metricsWithin))
	defer cancel()
	var out []autoscaler.Sample
	for i := range hpa.Spec.Metrics {
		s := c.metrics.sample(ctx, hpa, &hpa.Spec.Metrics[i], selector)
		if s.Err != nil && ctx.Err() != nil {
			s.Err = fmt.Errorf("%w: %w", context.Cause(ctx), s.Err)
		}
		out = append(out, s)
	}
	return out
}

// target returns the scale of an autoscaler's target, and its kind (W7.11).
func (c *Controller) target(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler) (inventory.Kind,
	*autoscalingv1.Scale, error) {
	ref := hpa.Spec.ScaleTargetRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return inventory.Kind{}, nil, err
	}
	kind, ok := c.kinds.Preferred(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if !ok {
		return inventory.Kind{}, nil, fmt.Errorf("no matches for kind %q in group %q", ref.Kind, gv.Group)
	}
	s, err := c.scales.get(ctx, kind, hpa.Namespace, ref.Name)
	return kind, s, err
}

// tries is the number of retries of a scale after conflicts (W7.12).
const tries = 5

func (c *Controller) rescale(ctx context.Context, kind inventory.Kind, s *autoscalingv1.Scale, size int32) (err error) {
	for i := range tries {
		s.Spec.Replicas = size
		if err = c.scales.put(ctx, kind, s); err == nil || !apierrors.IsConflict(err) {
			return err
		}
		if i == tries-1 {
			break
		}
		wait := time.NewTimer(10 * time.Millisecond)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		}
		if next, got := c.scales.get(ctx, kind, s.Namespace, s.Name); got == nil {
			s = next
		}
	}
	return err
}

// setSelector records an autoscaler's selector and returns its history.
func (c *Controller) setSelector(key string, uid types.UID, selector labels.Selector) autoscaler.History {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[key]
	if k.uid != uid {
		k = known{uid: uid}
	}
	if selector != nil {
		k.selector = selector
	}
	c.known[key] = k
	return k.history
}

func (c *Controller) keep(key string, uid types.UID, m autoscaler.History) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.known[key]; ok && k.uid == uid {
		k.history = m
		c.known[key] = k
	}
}

func (c *Controller) selected(namespace string, selector labels.Selector) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range source.Namespaced[*corev1.Pod](c.pods, namespace) {
		if selector.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out
}

// rivals returns the autoscalers that select some of these pods, this one among them; nil when
// there is no other (W7.27).
func (c *Controller) rivals(key string, pods []*corev1.Pod) []string {
	namespace, _, _ := strings.Cut(key, "/")
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []string{key}
	for other, k := range c.known {
		if where, _, _ := strings.Cut(other, "/"); other == key || where != namespace || k.selector == nil {
			continue
		}
		if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return k.selector.Matches(labels.Set(p.Labels)) }) {
			out = append(out, other)
		}
	}
	if len(out) == 1 {
		return nil
	}
	slices.Sort(out)
	return out
}

func (c *Controller) record(hpa *autoscalingv2.HorizontalPodAutoscaler, events []autoscaler.Event) {
	for _, e := range events {
		c.events.Event(hpa, e.Type, e.Reason, e.Message)
	}
}

// store writes a status that has changed (W7.28).
func (c *Controller) store(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler,
	status autoscalingv2.HorizontalPodAutoscalerStatus) error {
	if _, err := c.write(ctx, hpa, status); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// write is store for an autoscaler that must still exist. It returns the autoscaler as stored.
func (c *Controller) write(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler,
	status autoscalingv2.HorizontalPodAutoscalerStatus) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	if equality.Semantic.DeepEqual(hpa.Status, status) {
		return hpa, nil
	}
	next := hpa.DeepCopy()
	next.Status = status
	stored, err := c.client.AutoscalingV2().HorizontalPodAutoscalers(hpa.Namespace).UpdateStatus(ctx, next,
		metav1.UpdateOptions{})
	if err != nil {
		if !apierrors.IsNotFound(err) {
			c.events.Event(hpa, corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
		}
		return hpa, fmt.Errorf("failed to update status for %s: %w", hpa.Name, err)
	}
	return stored, nil
}
