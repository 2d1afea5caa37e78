// Package autoscaler decides the number of pods of a HorizontalPodAutoscaler's target (W7). The
// controller drives it. It is a function of its arguments.
//
// Contract: docs/spec/workloads.md.
package autoscaler

import (
	"errors"
	"fmt"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The settings of upstream's manager (W7.10).
const (
	Period           = 15 * time.Second // between two passes
	downWindow       = 5 * time.Minute
	defaultTolerance = 0.1
	cpuStart         = 5 * time.Minute
	firstReadiness   = 30 * time.Second
)

// Scale is the target's scale subresource.
type Scale struct {
	Wanted   int32 // spec.replicas
	Current  int32 // status.replicas
	Selector string
}

// Input holds everything that Plan uses; all of it is read only.
type Input struct {
	HPA   *autoscalingv2.HorizontalPodAutoscaler // with defaults
	Now   time.Time
	Scale Scale
	// Pods are those that the scale's selector matches; Samples belong to spec.metrics, one
	// each. Both are read only if NeedsMetrics.
	Pods    []*corev1.Pod
	Samples []Sample
	// Rivals are autoscalers, this one among them, that select the same pods; nil when there are none.
	Rivals []string
	// SelectorErr is the error of parsing the selector.
	SelectorErr error
	// History is the history from the last output; empty after a restart (W7.13).
	History History
}

// Output is the decision.
type Output struct {
	// Rescale is the new size of the target; nil: no change.
	Rescale *int32
	// Status is the new status if nothing is rescaled; after a rescale, Rescaled returns it.
	Status  autoscalingv2.HorizontalPodAutoscalerStatus
	Events  []Event
	History History
	// Problem is the error of the metrics.
	Problem error

	reason string
}

// Event is an event to record about the autoscaler.
type Event struct{ Type, Reason, Message string }

func warning(reason string, err error) Event {
	return Event{corev1.EventTypeWarning, reason, err.Error()}
}

type plan struct {
	Input
	out Output
	min int32
}

func newPlan(in Input) *plan {
	p := &plan{Input: in, min: 1}
	if m := in.HPA.Spec.MinReplicas; m != nil {
		p.min = *m
	}
	p.out.Status = *in.HPA.Status.DeepCopy()
	p.out.History = in.History.begin(in.Scale.Wanted, in.Now)
	return p
}

// Unreadable returns the decision if the target's scale cannot be read (W7.20).
func Unreadable(hpa *autoscalingv2.HorizontalPodAutoscaler, now time.Time,
	err error) (autoscalingv2.HorizontalPodAutoscalerStatus, []Event) {
	p := &plan{Input: Input{HPA: hpa, Now: now}}
	p.out.Status = *hpa.Status.DeepCopy()
	p.set(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale",
		"the HPA controller was unable to get the target's current scale: %v", err)
	return p.out.Status, []Event{warning("FailedGetScale", err)}
}

// NeedsMetrics reports whether the size depends on metrics (W7.21 to W7.24).
func NeedsMetrics(hpa *autoscalingv2.HorizontalPodAutoscaler, scale Scale) bool {
	p := newPlan(Input{HPA: hpa, Scale: scale})
	if scale.Wanted == 0 {
		return p.mayWake()
	}
	return scale.Wanted <= hpa.Spec.MaxReplicas && scale.Wanted >= p.min
}

// mayWake reports whether this autoscaler has scaled its target to 0, so that it may grow again
// (W7.21, W7.25).
func (p *plan) mayWake() bool {
	return p.scaledToZero() && (p.min != 0 || p.scalesToZero())
}

func (p *plan) scaledToZero() bool {
	return slices.ContainsFunc(p.HPA.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScaledToZero && c.Status == corev1.ConditionTrue
	})
}

// scalesToZero reports whether there is a metric that exists without pods.
func (p *plan) scalesToZero() bool {
	return slices.ContainsFunc(p.HPA.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
}

// Plan decides about one autoscaler whose target's scale could be read.
func Plan(in Input) Output {
	p := newPlan(in)
	current := in.Scale.Wanted
	p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale",
		"the HPA controller was able to get the target's current scale")
	switch {
	case current == 0 && !p.mayWake():
		p.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled",
			"scaling is disabled since the replica count of the target is zero")
		p.status(current, nil)
	case current > 0 && current > in.HPA.Spec.MaxReplicas:
		p.rescale(in.HPA.Spec.MaxReplicas, "Current number of replicas above Spec.MaxReplicas", nil)
	case current > 0 && current < p.min:
		p.rescale(p.min, "Current number of replicas below Spec.MinReplicas", nil)
	default:
		p.byMetrics()
	}
	return p.out
}

// byMetrics sizes the target by its metrics.
func (p *plan) byMetrics() {
	current := p.Scale.Wanted
	best, metric, statuses, err := p.proposal()
	if err != nil && best < 0 {
		p.out.Events = append(p.out.Events, warning("FailedComputeMetricsReplicas", err))
		p.out.Problem = err
		p.status(p.HPA.Status.DesiredReplicas, statuses)
		return
	}
	p.out.Problem = err
	reason := ""
	switch {
	case best > current:
		reason = metric + " above target"
	case best < current:
		reason = "All metrics below target"
	}
	var size int32
	if p.HPA.Spec.Behavior == nil {
		size = p.limit(best)
	} else {
		size = p.limitByRules(best)
	}
	if current == 0 && p.min != 0 && p.scaledToZero() && size < p.min {
		size = p.min
		if reason == "" {
			reason = "Current number of replicas below Spec.MinReplicas"
		}
	}
	if size != current {
		p.rescale(size, reason, statuses)
		return
	}
	p.status(current, statuses)
}

// proposal returns the largest size that a metric requires, and which metric that is. With an
// error, the size is -1 if there are too few metrics (W7.26).
func (p *plan) proposal() (size int32, metric string, statuses []autoscalingv2.MetricStatus, err error) {
	if err := p.checkSelector(); err != nil {
		return -1, "", nil, err
	}
	statuses = make([]autoscalingv2.MetricStatus, len(p.HPA.Spec.Metrics))
	invalid := 0
	var first error
	var reason, message string
	for i := range p.HPA.Spec.Metrics {
		e := p.evaluate(i)
		if e.err != nil {
			p.out.Events = append(p.out.Events, warning(e.failure, e.err))
			if first == nil {
				first, reason, message = e.outer, e.failure,
					fmt.Sprintf("the HPA was unable to compute the replica count: %v", e.err)
			}
			invalid++
			continue
		}
		statuses[i] = e.status
		if size == 0 || e.size > size {
			size, metric = e.size, e.name
		}
	}
	if first != nil {
		err = fmt.Errorf("invalid metrics (%v invalid out of %v), first error is: %w", invalid, len(p.HPA.Spec.Metrics),
			first)
	}
	if invalid >= len(p.HPA.Spec.Metrics) || invalid > 0 && size < p.Scale.Wanted {
		p.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, reason, "%s", message)
		return -1, "", statuses, err
	}
	p.set(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound",
		"the HPA was able to successfully calculate a replica count from %s", metric)
	return size, metric, statuses, err
}

// checkSelector rejects a target whose pods can't be determined, or also belong to another autoscaler (W7.27).
func (p *plan) checkSelector() error {
	inactive := func(event, condition, text string, err error) error {
		p.out.Events = append(p.out.Events, warning(event, err))
		p.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, condition, "%s", text)
		return err
	}
	switch {
	case p.Scale.Selector == "":
		return inactive("SelectorRequired", "InvalidSelector", "the HPA target's scale is missing a selector",
			errors.New("selector is required"))
	case p.SelectorErr != nil:
		err := fmt.Errorf("couldn't convert selector into a corresponding internal selector object: %w", p.SelectorErr)
		return inactive("InvalidSelector", "InvalidSelector", err.Error(), err)
	case len(p.Rivals) > 1:
		err := fmt.Errorf("pods by selector %v are controlled by more than one HPA (e.g. %v)", p.Scale.Selector,
			p.Rivals[:2])
		return inactive("AmbiguousSelector", "AmbiguousSelector", err.Error(), err)
	}
	return nil
}

func (p *plan) rescale(size int32, reason string, statuses []autoscalingv2.MetricStatus) {
	p.out.Rescale, p.out.reason = &size, reason
	p.status(p.HPA.Status.DesiredReplicas, statuses)
}

// status sets the fields that do not depend on the result of a rescale.
func (p *plan) status(desired int32, statuses []autoscalingv2.MetricStatus) {
	s := &p.out.Status
	s.CurrentReplicas, s.DesiredReplicas, s.CurrentMetrics, s.ObservedGeneration = p.Scale.Wanted, desired, statuses,
		new(p.HPA.Generation)
}

// BeforeZero returns the decision with the condition ScaledToZero; false if it does not scale the target to zero. Its
// status is stored before the target is scaled: without the condition, an autoscaler never scales it up again (W7.25),
// and the write afterwards may fail.
func BeforeZero(in Input, out Output) (Output, bool) {
	p := newPlan(in)
	if p.out = out; out.Rescale == nil || !p.toZero() {
		return out, false
	}
	p.out.Status.Conditions = slices.Clone(out.Status.Conditions)
	p.setToZero()
	return p.out, true
}

// toZero reports whether the decision scales a target to zero that the autoscaler may scale up again.
func (p *plan) toZero() bool {
	return p.Scale.Wanted > 0 && *p.out.Rescale == 0 && p.min == 0 && p.scalesToZero()
}

func (p *plan) setToZero() {
	p.set(autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero",
		"the HPA controller scaled the workload to zero")
}

// Rescaled returns the status and the event after the write of the target's scale, or its failure.
func Rescaled(in Input, out Output, err error) Output {
	p := newPlan(in)
	p.out = out
	size, current := *out.Rescale, in.Scale.Wanted
	if err != nil {
		p.set(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale",
			"the HPA controller was unable to update the target scale: %v", err)
		p.out.Events = append(p.out.Events, Event{corev1.EventTypeWarning, "FailedRescale",
			fmt.Sprintf("New size: %d; reason: %s; error: %v", size, out.reason, err)})
		return p.out
	}
	p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale",
		"the HPA controller was able to update the target scale to %d", size)
	p.out.Events = append(p.out.Events,
		Event{corev1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", size, out.reason)})
	p.out.History = out.History.rescaled(in.HPA.Spec.Behavior, current, size, in.Now)
	if p.toZero() {
		p.setToZero()
	} else {
		p.set(autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero",
			"the HPA controller did not scale the workload to zero")
	}
	p.out.Status.DesiredReplicas = size
	p.out.Status.LastScaleTime = &metav1.Time{Time: in.Now}
	return p.out
}

// set changes or adds a condition; its time moves with its status only (W7.66).
func (p *plan) set(kind autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, reason,
	format string, args ...any) {
	all := &p.out.Status.Conditions
	i := slices.IndexFunc(*all, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool { return c.Type == kind })
	if i < 0 {
		i = len(*all)
		*all = append(*all, autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind})
	}
	c := &(*all)[i]
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(p.Now)
	}
	c.Status, c.Reason, c.Message = status, reason, fmt.Sprintf(format, args...)
}
