package devicetaints

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applyresourcev1 "k8s.io/client-go/applyconfigurations/resource/v1"

	"carob/internal/controllers/source"
	"carob/internal/core/devicetaints"
)

// statusPeriod is the shortest time between two statuses of one state of a rule.
const statusPeriod = 10 * time.Second

// describeLater schedules the statuses of rules after a delay, because more pods may follow.
func (c *Controller) describeLater(rules []*resourcev1.DeviceTaintRule) {
	for _, r := range rules {
		c.loop.AddAfter("rule/"+r.Name, statusPeriod)
	}
}

// describe writes the status of a rule, if it changed.
func (c *Controller) describe(ctx context.Context, name string) (time.Duration, error) {
	rule, next, wait := c.status(name)
	if next == nil {
		return wait, nil
	}
	status := applyresourcev1.DeviceTaintRuleStatus().WithConditions(applymetav1.Condition().WithType(next.Type).
		WithStatus(next.Status).WithReason(next.Reason).WithMessage(next.Message).
		WithObservedGeneration(next.ObservedGeneration).WithLastTransitionTime(next.LastTransitionTime))
	_, err := c.client.ResourceV1().DeviceTaintRules().ApplyStatus(ctx,
		applyresourcev1.DeviceTaintRule(name).WithUID(rule.UID).WithStatus(status),
		metav1.ApplyOptions{FieldManager: Name, Force: true})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("write the status of DeviceTaintRule %s: %w", name, err)
	}
	c.mu.Lock()
	if s := c.rules[rule.UID]; s != nil {
		s.written = next
	}
	c.mu.Unlock()
	return 0, nil
}

// status returns a rule and the condition to write; or no condition, and when to check again.
func (c *Controller) status(name string) (*resourcev1.DeviceTaintRule, *metav1.Condition, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rule := source.Get[*resourcev1.DeviceTaintRule](c.in.Rules, name)
	if rule == nil || c.rules[rule.UID] == nil {
		return nil, nil, 0 // it was deleted
	}
	s := c.rules[rule.UID]
	now := time.Now()
	// The watch may not show what was written last.
	last := devicetaints.Condition(rule)
	if last == nil || s.written != nil && last.LastTransitionTime.Before(&s.written.LastTransitionTime) {
		last = s.written
	}
	if last != nil && last.ObservedGeneration == rule.Generation {
		// A time in the future was not written by this controller.
		if since := now.Sub(last.LastTransitionTime.Time); since >= 0 && since < statusPeriod {
			return nil, nil, statusPeriod - since
		}
	}
	next := c.index.Status(rule, s.evicted, devicetaints.Cluster{Claims: c.claims(), Claim: c.claim,
		Pod: func(namespace, name string) *corev1.Pod {
			return source.Get[*corev1.Pod](c.in.Pods, namespace+"/"+name)
		}})
	if last != nil {
		next.LastTransitionTime = last.LastTransitionTime
		if next == *last {
			return nil, nil, 0
		}
	}
	next.LastTransitionTime = metav1.NewTime(now)
	return rule, &next, 0
}
