package sim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/podstatus"
)

// plan schedules the actions of users and other controllers, and accidents, for a pod.
func (w *world) plan(o *object) {
	if w.chance(0.6) {
		w.sometime(func() { w.delete(o, int64(w.rand.IntN(40))) })
		if w.chance(0.3) {
			w.sometime(func() { w.delete(o, int64(w.rand.IntN(5))) })
		}
		if w.chance(0.3) { // a moment later: the grace period is shortened meanwhile
			first := w.upTo(w.horizon())
			if w.element() {
				w.after(first, func() { w.delete(o, int64(20+w.rand.IntN(20))) })
				w.after(first+w.upTo(20*time.Second), func() { w.delete(o, int64(w.rand.IntN(6))) })
			}
		}
	}
	if w.chance(0.15) {
		w.sometime(func() { w.forceDelete(o) })
	}
	if w.chance(0.15) {
		w.sometime(func() { w.stop(o) })
	}
	for range w.rand.IntN(3) * w.rand.IntN(2) {
		w.sometime(func() { w.update(o) })
	}
	if w.chance(0.15) {
		w.sometime(func() { w.debug(o) })
		if w.chance(0.3) {
			w.sometime(func() { w.debug(o) })
		}
	}
	for range w.rand.IntN(4) * w.rand.IntN(2) {
		w.sometime(func() { w.resize(o) })
	}
	if w.chance(0.1) {
		w.sometime(func() { w.hasten(o) })
	}
	for range len(o.pod.Spec.ReadinessGates) * (1 + w.rand.IntN(5)) {
		w.sometime(func() { w.gate(o) })
	}
	if w.chance(0.05) {
		w.sometime(func() {
			w.setCondition(o, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "EvictionByEvictionAPI", LastTransitionTime: metav1.NewTime(w.wall())})
		})
	}
	if o.finalizer {
		w.sometime(func() { w.finalize(o) })
	}
	if w.clean {
		return
	}
	for range w.rand.IntN(4) {
		w.sometime(func() { w.accident(o) })
	}
	if w.chance(0.1) {
		w.sometime(func() { w.refuse(o) })
	}
	if w.chance(0.04) {
		w.sometime(func() { w.collect(o) })
	}
}

// debug adds an ephemeral container.
func (w *world) debug(o *object) {
	w.change(o, func(p *corev1.Pod) {
		if p.DeletionTimestamp != nil {
			return
		}
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers,
			corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: fmt.Sprintf("debug%d", len(p.Spec.EphemeralContainers)), Image: w.image(),
				ImagePullPolicy: corev1.PullIfNotPresent}})
		w.logf("%s has an ephemeral container", p.Name)
	})
}

// update changes the image of a container, sidecars and init containers too (L3.68, L3.73c).
func (w *world) update(o *object) {
	w.change(o, func(p *corev1.Pod) {
		all := containers(p)
		c := all[w.rand.IntN(len(all))]
		c.Image += "+"
		o.updated = true
		w.logf("%s image of %s is %s", p.Name, c.Name, c.Image)
	})
}

// hasten moves the active deadline closer (L1.63).
func (w *world) hasten(o *object) {
	w.change(o, func(p *corev1.Pod) {
		d := int64(60 + w.rand.IntN(3*3600))
		if have := p.Spec.ActiveDeadlineSeconds; have != nil {
			d = max(1, *have/2)
		}
		p.Spec.ActiveDeadlineSeconds = &d
		w.logf("%s deadline is %ds", p.Name, d)
	})
}

// collect is pod garbage collection: it sets the phase of a pod to Failed and deletes it (L7.166).
func (w *world) collect(o *object) {
	w.write(func() {
		if !o.exists || o.static || podstatus.Terminal(o.pod.Status.Phase) {
			return
		}
		p := o.pod.DeepCopy()
		p.Status.Phase, p.Status.Reason = corev1.PodFailed, "NodeLost"
		o.collected, o.stored = true, p.Status
		w.logf("%s is made Failed by the collector of pods", p.Name)
		w.store(o, p)
		w.delete(o, 0)
	})
}

// gate is the writer of a readiness gate (L4.54).
func (w *world) gate(o *object) {
	status := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionTrue,
		corev1.ConditionFalse}[w.rand.IntN(3)]
	w.setCondition(o, corev1.PodCondition{Type: gateType, Status: status, LastTransitionTime: metav1.NewTime(w.wall())})
}

const gateType corev1.PodConditionType = "example.com/in-rotation"

// resize changes the resources of some containers within the QoS class (L3.120).
func (w *world) resize(o *object) {
	if o.static {
		return
	}
	w.change(o, func(p *corev1.Pod) {
		if p.DeletionTimestamp != nil {
			return
		}
		back := w.chance(0.3)
		was := o.granted[len(o.granted)-1]
		for _, c := range containers(p) {
			switch {
			case back: // to the last allocation
				if old, _, _ := containerOf(was, c.Name); old != nil {
					c.Resources = *old.Resources.DeepCopy()
				}
			case w.chance(0.4):
				w.resizeOne(c)
			}
		}
		if limits := p.Spec.Resources; limits != nil && w.chance(0.3) {
			limits.Limits[corev1.ResourceCPU] = *resource.NewQuantity(20+int64(w.rand.IntN(10)), resource.DecimalSI)
		}
		o.updated = true // a new definition for the crash back-off (L3.75)
		w.logf("%s resize: %s", p.Name, sizes(p))
	})
}

func (w *world) resizeOne(c *corev1.Container) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if w.chance(0.3) {
			continue
		}
		request, hasRequest := c.Resources.Requests[name]
		limit, hasLimit := c.Resources.Limits[name]
		if !hasRequest {
			continue
		}
		same := hasLimit && request.Cmp(limit) == 0
		q := w.amount(name)
		c.Resources.Requests[name] = q
		switch {
		case same:
			c.Resources.Limits[name] = q
		case hasLimit:
			more := q.DeepCopy()
			more.Add(q)
			c.Resources.Limits[name] = more
		}
	}
}

// amount returns a random quantity of cpu or memory.
func (w *world) amount(name corev1.ResourceName) resource.Quantity {
	n := int64(1 + w.rand.IntN(12))
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(50*n, resource.DecimalSI)
	}
	return *resource.NewQuantity(16*n<<20, resource.BinarySI)
}

// containers returns those of a pod that have resources and probes, in order.
func containers(p *corev1.Pod) (all []*corev1.Container) {
	for i := range p.Spec.InitContainers {
		all = append(all, &p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		all = append(all, &p.Spec.Containers[i])
	}
	return all
}
