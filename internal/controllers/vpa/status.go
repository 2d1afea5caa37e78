package vpa

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"carob/internal/core/workload/vpa"
)

// recommend sets the statuses of autoscalers, and stores those that have changed.
func (c *Controller) recommend(ctx context.Context, ours []vpa.Target) {
	writes := map[string][]func(){}
	for _, t := range ours {
		failed := func(err error) {
			klog.FromContext(ctx).V(1).Info("The status of a vertical pod autoscaler was not stored", "vpa",
				klog.KObj(t.VPA), "err", err)
		}
		s, err := c.statusOf(t.VPA)
		if err != nil {
			failed(err)
		}
		if s == nil {
			continue
		}
		name := vpa.Name{Namespace: t.VPA.Namespace, Name: t.VPA.Name}
		writes[name.Namespace] = append(writes[name.Namespace], func() {
			if err := c.store.status(ctx, name, s); err != nil && !apierrors.IsNotFound(err) {
				failed(err)
			}
		})
	}
	c.statuses.run(ctx, writes)
}

// statusOf sets the status of an autoscaler, and returns it if it has changed.
func (c *Controller) statusOf(v *vpa.VerticalPodAutoscaler) (*vpa.Status, error) {
	name := vpa.Name{Namespace: v.Namespace, Name: v.Name}
	s, err := c.model.Recommend(name, time.Now())
	if err != nil {
		return nil, err
	}
	if had := v.Status.Recommendation != nil && len(v.Status.Recommendation.Containers) > 0; !had && !c.seen[v.UID] &&
		len(s.Recommendation.Containers) > 0 {
		recommendationLatency.Observe(time.Since(v.CreationTimestamp.Time).Seconds())
		c.seen[v.UID] = true
	}
	old := v.Status
	v.Status = s
	if equality.Semantic.DeepEqual(old, s) {
		return nil, nil
	}
	return &s, nil
}
