package rollout

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/deployment"
	"carob/internal/sim/cluster"
)

// picture is what the checks of a pass use: the sizes of the sets, how many of their pods were
// available in the controller's view, and whether old sets still have pods.
type picture struct {
	total, available int32
	sizes            map[types.UID]int32
	overlap          bool
}

func (w *world) picture(known []*appsv1.ReplicaSet) picture {
	p := picture{sizes: map[types.UID]int32{}}
	for uid, s := range w.truth.sets {
		size := *s.object.Spec.Replicas
		p.sizes[uid] = size
		p.total += size
		for _, k := range known {
			if k.UID == uid {
				p.available += min(size, k.Status.AvailableReplicas)
			}
		}
		if !workload.SameTemplate(&s.object.Spec.Template, &w.truth.d.object.Spec.Template) &&
			w.running(&w.truth, uid) {
			p.overlap = true
		}
	}
	return p
}

// judge checks a write of the deployment controller by what the pass knew.
func (w *world) judge(before picture, in deployment.Input) {
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
		cluster.Break(Surge, "%d pods are to be, %d may", now.total, most)
	}
	recreates := d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
	if least := *d.Spec.Replicas - unavailable; !recreates && !resized && now.available < before.available &&
		now.available < least {
		cluster.Break(Minimum, "%d of %d available pods stay, %d must", now.available, before.available, least)
	}
	same := workload.SameTemplate(&d.Spec.Template, &w.truth.d.object.Spec.Template) // otherwise the user was faster
	for uid, size := range now.sizes {
		if recreates && same && !resized && before.overlap && size > before.sizes[uid] {
			cluster.Break(NoOverlap, "a set grows to %d while old pods are there", size)
		}
	}
}

// judgeEnd checks the final state.
func (w *world) judgeEnd() {
	d := w.truth.d.object
	size := *d.Spec.Replicas
	if s := d.Status; s.ObservedGeneration != d.Generation || s.Replicas != size || s.UpdatedReplicas != size ||
		s.AvailableReplicas != size {
		cluster.Break(Ends, "size %d, status %+v", size, s)
	}
	current := 0
	for _, s := range w.truth.sets {
		switch same := workload.SameTemplate(&s.object.Spec.Template, &d.Spec.Template); {
		case same:
			current++
		case *s.object.Spec.Replicas != 0:
			cluster.Break(Ends, "an old set of %d is left", *s.object.Spec.Replicas)
		}
	}
	if current != 1 {
		cluster.Break(Ends, "%d sets have the template", current)
	}
	if limit := int(*d.Spec.RevisionHistoryLimit); len(w.truth.sets)-1 > limit {
		cluster.Break(History, "%d old sets, the limit is %d", len(w.truth.sets)-1, limit)
	}
	active := int32(0)
	for _, p := range w.truth.pods {
		if workload.Active(p) {
			active++
		}
	}
	if active != size {
		cluster.Break(Ends, "%d active pods of %d", active, size)
	}
}

func text(n int32) string { return strconv.FormatInt(int64(n), 10) }
