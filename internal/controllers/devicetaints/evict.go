package devicetaints

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/confirm"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/source"
	"carob/internal/core/devicetaints"
)

const eventReason = "DeviceTaintManagerEviction"

func (c *Controller) claim(namespace, name string) *resourcev1.ResourceClaim {
	return source.Get[*resourcev1.ResourceClaim](c.in.Claims, namespace+"/"+name)
}

// look evicts a pod whose time has come, or returns when that will be.
func (c *Controller) look(ctx context.Context, key string) (time.Duration, error) {
	pod := source.Get[*corev1.Pod](c.in.Pods, key)
	e := c.mark(key, pod)
	if e == nil {
		return 0, nil
	}
	if wait := time.Until(e.At); wait > 0 {
		return wait, nil
	}
	deleted, err := c.evict(ctx, pod)
	if err != nil {
		return 0, err
	}
	c.evicted(key, pod, e, deleted)
	if deleted {
		metrics.DevicePodsEvicted.WithLabelValues().Inc()
		metrics.DeviceEvictionSeconds.WithLabelValues().Observe(time.Since(e.At).Seconds())
	}
	return 0, nil
}

// mark records whether a pod must be evicted, and returns when; nil if not, or if it was already
// deleted.
func (c *Controller) mark(key string, pod *corev1.Pod) *devicetaints.Eviction {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, marked := c.marked[key]
	if marked && (pod == nil || pod.UID != m.pod || pod.DeletionTimestamp != nil) {
		c.unmark(key)
		marked = false
	}
	if pod == nil || pod.DeletionTimestamp != nil || marked && m.done {
		return nil
	}
	e := c.index.ForPod(pod, func(name string) *resourcev1.ResourceClaim { return c.claim(pod.Namespace, name) })
	if e == nil {
		if marked {
			c.unmark(key)
			c.events.Event(pod, corev1.EventTypeNormal, eventReason, "Cancelling deletion")
		}
		return nil
	}
	c.marked[key] = mark{pod: pod.UID, rules: e.Rules}
	c.describeLater(m.rules)
	c.describeLater(e.Rules)
	return e
}

// unmark removes the mark of a pod. Rules that counted it count again. c.mu is held.
func (c *Controller) unmark(key string) {
	c.describeLater(c.marked[key].rules)
	delete(c.marked, key)
}

// evicted records that a pod was deleted.
func (c *Controller) evicted(key string, pod *corev1.Pod, e *devicetaints.Eviction, deleted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m, ok := c.marked[key]; ok && m.pod == pod.UID {
		m.done = true
		c.marked[key] = m
	}
	for _, r := range e.Rules {
		if s := c.rules[r.UID]; s != nil && deleted {
			s.evicted++
		}
	}
	c.describeLater(e.Rules)
}

// evict sets a condition with the reason and deletes the pod. It returns false if the pod is
// already deleted. A process that ends between the two steps repeats both.
func (c *Controller) evict(ctx context.Context, pod *corev1.Pod) (bool, error) {
	pods := c.client.CoreV1().Pods(pod.Namespace)
	full, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
	if err == nil {
		if full.UID != pod.UID || full.DeletionTimestamp != nil {
			return false, nil
		}
		c.events.Event(pod, corev1.EventTypeNormal, eventReason, "Marking for deletion")
		full = full.DeepCopy()
		if setCondition(&full.Status) {
			_, err = pods.UpdateStatus(ctx, full, metav1.UpdateOptions{})
		}
	}
	if err == nil {
		err = pods.Delete(ctx, pod.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	}
	deleted := err == nil
	err = confirm.Ended(ctx, pod.UID, err, confirm.By(pods.Get, pod.Name))
	if err != nil {
		return false, fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return deleted, nil
}

// setCondition reports whether it changed anything.
func setCondition(status *corev1.PodStatus) bool {
	want := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "DeletionByDeviceTaintManager", Message: "Device Taint manager: deleting due to NoExecute taint",
		LastTransitionTime: metav1.Now()}
	for i := range status.Conditions {
		old := &status.Conditions[i]
		if old.Type != want.Type {
			continue
		}
		if old.Status == want.Status {
			if old.Reason == want.Reason && old.Message == want.Message {
				return false
			}
			want.LastTransitionTime = old.LastTransitionTime
		}
		*old = want
		return true
	}
	status.Conditions = append(status.Conditions, want)
	return true
}
