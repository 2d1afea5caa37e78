package sim

import (
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/podstatus"
)

// store makes p the newest version of a pod and notifies the agent.
func (w *world) store(o *object, p *corev1.Pod) {
	w.versions++
	o.pod, o.number = p, w.versions
	w.route(o)
	w.agent.notify(o)
}

// away returns for how long the API server will not answer.
func (w *world) away() time.Duration { return max(0, w.apiUp.Sub(w.loop.now)) }

// write runs a request to the API server, later if it does not answer now.
func (w *world) write(do func()) {
	if away := w.away(); away > 0 {
		w.after(away+w.upTo(time.Second), func() { w.write(do) })
		return
	}
	do()
}

// change edits the spec of a pod like a user.
func (w *world) change(o *object, edit func(*corev1.Pod)) {
	w.write(func() {
		if !o.exists || o.static {
			return
		}
		p := o.pod.DeepCopy()
		edit(p)
		if !reflect.DeepEqual(p.Spec, o.pod.Spec) {
			p.Generation++
		}
		w.store(o, p)
	})
}

// delete is a DELETE of the API (L1.90–L1.93, L1.95).
func (w *world) delete(o *object, grace int64) {
	if o.static {
		w.removeFile(o)
		return
	}
	w.write(func() {
		if !o.exists {
			return
		}
		p := o.pod.DeepCopy()
		if podstatus.Terminal(p.Status.Phase) {
			grace = 0
		}
		if g := p.DeletionGracePeriodSeconds; g != nil && grace >= *g {
			return
		}
		w.logf("%s delete grace=%d", p.Name, grace)
		at := metav1.NewTime(w.loop.now.Add(time.Duration(grace) * time.Second))
		if p.DeletionTimestamp == nil {
			p.Generation++
		}
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
		w.store(o, p)
		if grace == 0 && !o.finalizer {
			w.gone(o)
		}
	})
}

// forceDelete removes the object at once; the agent may only see its deletion.
func (w *world) forceDelete(o *object) {
	if o.exists && w.away() == 0 {
		o.finalizer = false
		w.delete(o, 0)
		w.gone(o)
	}
}

// gone removes a pod from its source.
func (w *world) gone(o *object) {
	if !o.exists {
		return
	}
	w.versions++
	o.exists, o.number = false, w.versions
	w.route(o)
	w.logf("%s is gone", o.pod.Name)
	w.agent.notify(o)
}

// removeFile ends a static pod (L7.16).
func (w *world) removeFile(o *object) {
	if o.exists {
		w.logf("%s: its file is removed", o.pod.Name)
		w.gone(o)
	}
}

// finalize is the controller that removes a finalizer (L1.95).
func (w *world) finalize(o *object) {
	w.write(func() {
		if !o.exists || !o.finalizer {
			return
		}
		o.finalizer = false
		w.logf("%s: its finalizer is removed", o.pod.Name)
		if g := o.pod.DeletionGracePeriodSeconds; g != nil && *g == 0 {
			w.gone(o)
		}
	})
}

// deleteFromNode is the agent's final DELETE (L7.40).
func (w *world) deleteFromNode(o *object) {
	if !o.exists {
		return
	}
	w.checkDeleted(o)
	if w.joined != nil {
		w.joined.remove(o)
		return
	}
	if !o.finalizer {
		w.gone(o)
		return
	}
	if g := o.pod.DeletionGracePeriodSeconds; g == nil || *g > 0 {
		none := int64(0)
		p := o.pod.DeepCopy()
		p.DeletionGracePeriodSeconds = &none
		w.store(o, p)
	}
}

// storeStatus is the agent's PATCH of everything that it owns in the status.
func (w *world) storeStatus(o *object, st *corev1.PodStatus) {
	p := o.pod.DeepCopy()
	p.Status = *st
	p.Status.Conditions = nil
	for _, c := range o.pod.Status.Conditions {
		if !podstatus.OwnCondition(c.Type) && (c.Type != corev1.DisruptionTarget || !ours(st)) {
			p.Status.Conditions = append(p.Status.Conditions, c)
		}
	}
	for _, c := range st.Conditions {
		if podstatus.OwnCondition(c.Type) || c.Type == corev1.DisruptionTarget && ours(st) {
			p.Status.Conditions = append(p.Status.Conditions, c)
		}
	}
	w.checkStored(o, &p.Status)
	if w.joined != nil {
		w.joined.store.SetStatus(p.UID, p.Status)
		return
	}
	w.store(o, p)
}

// ours reports whether the agent itself wrote the DisruptionTarget.
func ours(st *corev1.PodStatus) bool {
	c := podstatus.Condition(st.Conditions, corev1.DisruptionTarget)
	return c != nil && c.Reason == corev1.PodReasonTerminationByKubelet
}

// setCondition is another writer of conditions: the gate of a load balancer, or the controller that
// is about to evict.
func (w *world) setCondition(o *object, c corev1.PodCondition) {
	w.write(func() {
		if !o.exists || o.static {
			return
		}
		p := o.pod.DeepCopy()
		if old := podstatus.Condition(p.Status.Conditions, c.Type); old != nil {
			*old = c
		} else {
			p.Status.Conditions = append(p.Status.Conditions, c)
		}
		w.logf("%s condition %s=%s of another writer", p.Name, c.Type, c.Status)
		w.store(o, p)
	})
}
