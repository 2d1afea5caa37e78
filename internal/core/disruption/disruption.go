// Package disruption decides how many evictions a PodDisruptionBudget allows. The disruption
// controller drives it; eviction reads the result from the status. It is a function of its
// arguments.
//
// Contract: docs/spec/pod-lifecycle.md.
package disruption

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	pdbhelper "k8s.io/component-helpers/apps/poddisruptionbudget"
)

// Patience is how long a pod whose eviction was allowed does not count before its deletion is
// observed, and how long a condition DisruptionTarget stays without one.
const Patience = 2 * time.Minute

// Input is everything that Decide depends on.
type Input struct {
	Now    time.Time
	Budget *policyv1.PodDisruptionBudget // read only
	Pods   []*corev1.Pod                 // the pods that the budget selects
	// Scale is the number of replicas of the pods' controllers; only set if NeedsScale.
	Scale int32
}

// NeedsScale reports whether a budget depends on the desired number of replicas of the pods'
// controllers.
func NeedsScale(b *policyv1.PodDisruptionBudget) bool {
	return b.Spec.MaxUnavailable != nil || b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String
}

// Decide returns the budget's status, and when to decide again without a change (zero for never).
func Decide(in Input) (policyv1.PodDisruptionBudgetStatus, time.Duration, error) {
	expected, desired, err := wanted(in)
	if err != nil {
		return policyv1.PodDisruptionBudgetStatus{}, 0, err
	}
	b := in.Budget.DeepCopy()
	s := &b.Status
	var again time.Duration
	s.DisruptedPods, again = stillDisrupted(in)
	s.ObservedGeneration, s.ExpectedPods, s.DesiredHealthy, s.CurrentHealthy = b.Generation, expected, desired, 0
	for _, p := range in.Pods {
		if _, evicted := s.DisruptedPods[p.Name]; !evicted && p.DeletionTimestamp == nil && ready(p) {
			s.CurrentHealthy++
		}
	}
	s.DisruptionsAllowed = 0
	if expected > 0 {
		s.DisruptionsAllowed = max(0, s.CurrentHealthy-desired)
	}
	return *s, again, nil
}

// wanted returns the expected number of pods, and how many must stay healthy.
func wanted(in Input) (expected, desired int32, err error) {
	spec := in.Budget.Spec
	switch {
	case spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, int(in.Scale), true)
		return in.Scale, max(0, in.Scale-int32(n)), err
	case spec.MinAvailable == nil:
		return int32(len(in.Pods)), 0, nil
	case spec.MinAvailable.Type == intstr.Int:
		return int32(len(in.Pods)), spec.MinAvailable.IntVal, nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, int(in.Scale), true)
	return in.Scale, int32(n), err
}

// stillDisrupted returns the recorded evictions whose pod exists, is not being deleted, and may
// still be.
func stillDisrupted(in Input) (map[string]metav1.Time, time.Duration) {
	out := map[string]metav1.Time{}
	var again time.Duration
	for _, p := range in.Pods {
		at, evicted := in.Budget.Status.DisruptedPods[p.Name]
		left := at.Add(Patience).Sub(in.Now)
		if !evicted || p.DeletionTimestamp != nil || left <= 0 {
			continue
		}
		out[p.Name] = at
		if again == 0 || left < again {
			again = left
		}
	}
	if len(out) == 0 {
		return nil, 0
	}
	return out, again
}

// Overdue returns the pods whose eviction was allowed so long ago that they should be gone
// (L10.68): they count again.
func Overdue(in Input) []*corev1.Pod {
	var list []*corev1.Pod
	for _, p := range in.Pods {
		at, evicted := in.Budget.Status.DisruptedPods[p.Name]
		if evicted && p.DeletionTimestamp == nil && !at.Add(Patience).After(in.Now) {
			list = append(list, p)
		}
	}
	return list
}

// Stale reports whether the condition DisruptionTarget announces a deletion that did not happen in
// time. The duration is the time that is left for the deletion; zero if it has passed. The node
// agent's own condition is never stale: its pods can take any time to end.
func Stale(p *corev1.Pod, now time.Time) (left time.Duration, marked bool) {
	if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return 0, false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			c.Reason != corev1.PodReasonTerminationByKubelet {
			return max(0, c.LastTransitionTime.Add(Patience).Sub(now)), true
		}
	}
	return 0, false
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Conclude sets the condition that reports whether disruptions are allowed.
func Conclude(b *policyv1.PodDisruptionBudget) { pdbhelper.UpdateDisruptionAllowedCondition(b) }
