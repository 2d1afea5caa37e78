package deployments

import (
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/deployment"
	"carob/internal/sim/fakeapi"
)

// picture holds the facts for the checks of a pass: the sizes of the sets, how many of their pods
// were available in the controller's view, and whether old sets still have pods.
type picture struct {
	total, available int32
	sizes            map[types.UID]int32
	overlap          bool
}

func (w *world) picture(known []*appsv1.ReplicaSet) picture {
	p := picture{sizes: map[types.UID]int32{}}
	d := w.current()
	for _, s := range fakeapi.All[*appsv1.ReplicaSet](w.API) {
		size := *s.Spec.Replicas
		p.sizes[s.UID] = size
		p.total += size
		for _, k := range known {
			if k.UID == s.UID {
				p.available += min(size, k.Status.AvailableReplicas)
			}
		}
		if !workload.SameTemplate(&s.Spec.Template, &d.Spec.Template) && running(w.podsOf(s.UID)) {
			p.overlap = true
		}
	}
	return p
}

// podsOf returns the stored pods of a set.
func (w *world) podsOf(set types.UID) []*corev1.Pod {
	return slices.DeleteFunc(fakeapi.All[*corev1.Pod](w.API),
		func(p *corev1.Pod) bool { return metav1.GetControllerOfNoCopy(p).UID != set })
}

// created checks a pod that the ReplicaSet controller created.
func (w *world) created(set *appsv1.ReplicaSet, made *corev1.Pod) {
	n := int32(0)
	for _, p := range w.podsOf(set.UID) {
		if p.UID != made.UID && w.unanswered[p.UID] && w.counts.pods.Get(p.UID) == nil {
			continue // the controller could not have observed it yet
		}
		if workload.Active(p) {
			n++
		}
	}
	if most := w.largest[set.UID]; n > most {
		fakeapi.Break(NoneTwice, "set %s has %d pods, its largest size was %d", set.Name, n, most)
	}
}

// check checks a write of the deployment controller by the pass's view.
func (w *world) check(before picture, in deployment.Input) {
	d, now := in.Deployment, w.picture(in.Sets)
	surge, unavailable := deployment.Bounds(d)
	resized := d.Spec.Paused // other rules spread a change of size (W2.62)
	for _, s := range in.Sets {
		if n := s.Annotations[deployment.DesiredReplicas]; *s.Spec.Replicas > 0 && n != "" &&
			n != text(*d.Spec.Replicas) {
			resized = true
		}
	}
	if most := *d.Spec.Replicas + surge; now.total > before.total && now.total > most {
		fakeapi.Break(Surge, "%d pods are to be, %d may", now.total, most)
	}
	recreates := d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
	if least := *d.Spec.Replicas - unavailable; !recreates && !resized && now.available < before.available &&
		now.available < least {
		fakeapi.Break(Minimum, "%d of %d available pods stay, %d must", now.available, before.available, least)
	}
	same := workload.SameTemplate(&d.Spec.Template, &w.current().Spec.Template) // otherwise the user was faster
	for uid, size := range now.sizes {
		if recreates && same && !resized && before.overlap && size > before.sizes[uid] {
			fakeapi.Break(NoOverlap, "a set grows to %d while old pods are there", size)
		}
	}
}

// checkEnd checks the final state.
func (w *world) checkEnd() {
	d := w.current()
	size := *d.Spec.Replicas
	if s := d.Status; s.ObservedGeneration != d.Generation || s.Replicas != size || s.UpdatedReplicas != size ||
		s.AvailableReplicas != size {
		fakeapi.Break(Ends, "size %d, status %+v", size, s)
	}
	current := 0
	for _, s := range fakeapi.All[*appsv1.ReplicaSet](w.API) {
		switch same := workload.SameTemplate(&s.Spec.Template, &d.Spec.Template); {
		case same:
			current++
		case *s.Spec.Replicas != 0:
			fakeapi.Break(Ends, "an old set of %d is left", *s.Spec.Replicas)
		}
	}
	if current != 1 {
		fakeapi.Break(Ends, "%d sets have the template", current)
	}
	if all, limit := len(fakeapi.All[*appsv1.ReplicaSet](w.API))-1, int(*d.Spec.RevisionHistoryLimit); all > limit {
		fakeapi.Break(History, "%d old sets, the limit is %d", all, limit)
	}
	active := int32(0)
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		if workload.Active(p) {
			active++
		}
	}
	if active != size {
		fakeapi.Break(Ends, "%d active pods of %d", active, size)
	}
}

func text(n int32) string { return strconv.FormatInt(int64(n), 10) }
