package sim

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
)

// drainTimeout is the longest wait of a deleted pod for the data plane.
const drainTimeout = 2 * time.Second

// route is the data plane of the Services that select a pod. It is notified a moment later that the pod became ready or
// unready, or is being deleted; sometimes much later, sometimes twice, and sometimes never of the deletion.
func (w *world) route(o *object) {
	want := o.served && o.exists && o.pod.DeletionTimestamp == nil && !podstatus.Terminal(o.pod.Status.Phase)
	if !podstatus.ConditionTrue(o.pod.Status.Conditions, corev1.PodReady) {
		want = false
	}
	if want == o.routes {
		return
	}
	o.routes = want
	if !want && w.chance(w.fault/4) {
		w.logf("%s: the data plane never learns that it is to let go", o.pod.Name)
		return
	}
	delay := time.Millisecond + w.upTo(30*time.Millisecond)
	if w.chance(w.fault) {
		delay += w.upTo(20 * time.Second)
	}
	apply := func() {
		o.routed = o.routes
		if own := w.agent.find(o); own != nil {
			own.soon()
		}
	}
	w.after(delay, apply)
	if w.chance(0.1) {
		w.after(delay+w.upTo(time.Second), apply)
	}
}

// checkTraffic checks that no container of a deleted pod is stopped while the data plane opens new
// connections to the pod, unless the wait is over.
func (w *world) checkTraffic(own *owner, container string, life podlife.Life) {
	if !own.object.routed || life != podlife.Terminating || own.pod.DeletionTimestamp == nil || own.gone ||
		own.stop != nil || own.rejected != nil || podstatus.Terminal(own.last.Phase) {
		return
	}
	if at := own.object.container(container).stopping; !at.IsZero() && at.Before(own.ending) {
		return // ordered before the pod ended
	}
	grace := time.Duration(*own.pod.DeletionGracePeriodSeconds) * time.Second
	if until := own.ending.Add(min(drainTimeout, grace/2)); w.loop.now.Before(until) {
		w.broken(trafficFirst, own.pod.Name, "%s is stopped %v early", container, until.Sub(w.loop.now))
	}
}
