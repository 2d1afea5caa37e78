package rollout

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/deployment"
	"carob/internal/core/workload/replicaset"
	"carob/internal/sim/cluster"
)

// fresh reports whether a controller has seen its own writes.
func (w *world) fresh(v *view) bool { return v.version >= v.needs || w.sabotage.Stale }

// rollOut is a pass of the deployment controller that ends after so many writes.
func (w *world) rollOut(writes int) {
	v := w.rollouts
	if v.d.object == nil || !w.fresh(v) {
		return
	}
	in := deployment.Input{Deployment: v.d.object, Now: w.now,
		Running: func(set types.UID) bool { return w.running(v, set) }}
	for _, uid := range slices.Sorted(maps.Keys(v.sets)) {
		in.Sets = append(in.Sets, v.sets[uid].object)
	}
	if w.sabotage.In != nil {
		w.sabotage.In(&in)
	}
	plan := deployment.Decide(in)
	if w.sabotage.Plan != nil {
		w.sabotage.Plan(&plan)
	}
	before := w.picture(in.Sets)
	for i, step := range plan.Steps {
		if i == writes || !w.write(v, step) {
			break
		}
		v.needs = w.truth.version
		w.judge(before, in)
	}
}

func (w *world) running(v *view, set types.UID) bool {
	for _, p := range v.pods {
		if !workload.Terminal(p) && metav1.GetControllerOfNoCopy(p).UID == set {
			return true
		}
	}
	return false
}

// write does a write; false means a conflict.
func (w *world) write(v *view, step deployment.Step) bool {
	switch {
	case step.Create != nil:
		for _, s := range w.truth.sets {
			if s.object.Name == step.Create.Name {
				return false
			}
		}
		s := step.Create.DeepCopy()
		w.made++
		s.UID, s.Generation, s.CreationTimestamp = types.UID(fmt.Sprintf("set-%04d", w.made)), 1, metav1.NewTime(w.now)
		w.store(change{set: s})
	case step.Update != nil:
		uid := step.Update.UID
		if w.truth.sets[uid].object == nil || w.truth.sets[uid].version != v.sets[uid].version {
			return false
		}
		s := step.Update.DeepCopy()
		s.Generation++
		w.store(change{set: s})
	case step.Delete != nil:
		s, ok := w.truth.sets[step.Delete.UID]
		if !ok {
			return true
		}
		w.store(change{set: s.object, gone: true})
		for _, uid := range slices.Sorted(maps.Keys(w.truth.pods)) { // what the garbage collector does
			if p := w.truth.pods[uid]; metav1.GetControllerOfNoCopy(p).UID == step.Delete.UID {
				w.store(change{pod: p, gone: true})
			}
		}
	case w.truth.d.version != v.d.version:
		return false
	case step.Rollback != nil:
		d := step.Rollback.DeepCopy()
		d.Status, d.Generation = w.truth.d.object.Status, d.Generation+1
		w.store(change{deployment: d})
	case step.Status != nil:
		d := w.truth.d.object.DeepCopy()
		d.Status, d.Annotations = *step.Status.Status.DeepCopy(), maps.Clone(step.Status.Annotations)
		w.store(change{deployment: d})
	}
	return true
}

// count is a pass of the ReplicaSet controller for one set.
func (w *world) count(uid types.UID, writes int) {
	v := w.counts
	s, ok := v.sets[uid]
	if !ok || !w.fresh(v) {
		return
	}
	in := replicaset.Input{Set: s.object, Now: w.now, Ending: new(int32)}
	for _, pod := range slices.Sorted(maps.Keys(v.pods)) {
		switch p := v.pods[pod]; {
		case metav1.GetControllerOfNoCopy(p).UID != uid:
		case workload.Active(p):
			in.Active = append(in.Active, p)
		case workload.Terminating(p):
			*in.Ending++
		}
	}
	plan := replicaset.Decide(in)
	if w.sabotage.Pods != nil {
		w.sabotage.Pods(&plan)
	}
	for range plan.Create {
		if writes--; writes < 0 {
			return
		}
		w.create(v, s.object)
	}
	for _, p := range plan.Delete {
		if writes--; writes < 0 {
			return
		}
		if there := w.truth.pods[p.UID]; there != nil && there.DeletionTimestamp == nil {
			c := there.DeepCopy()
			c.DeletionTimestamp = new(metav1.NewTime(w.now))
			w.store(change{pod: c})
			v.needs = w.truth.version
		}
	}
	status, changed, _ := replicaset.Status(in, nil)
	if changed && writes > 0 && w.truth.sets[uid].object != nil && w.truth.sets[uid].version == s.version {
		c := s.object.DeepCopy()
		c.Status = status
		w.store(change{set: c})
		v.needs = w.truth.version
	}
}

func (w *world) create(v *view, set *appsv1.ReplicaSet) {
	p, err := workload.NewPod(workload.Owner{Object: set, Kind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet")},
		&set.Spec.Template)
	if err != nil {
		panic(err)
	}
	w.made++
	p.UID, p.CreationTimestamp = types.UID(fmt.Sprintf("pod-%04d", w.made)), metav1.NewTime(w.now)
	p.Status.Phase = corev1.PodPending
	if w.truth.sets[set.UID].object == nil {
		return // the garbage collector would delete it at once
	}
	w.store(change{pod: p})
	v.needs = w.truth.version
	n := int32(0)
	for _, q := range w.truth.pods {
		if workload.Active(q) && metav1.GetControllerOfNoCopy(q).UID == set.UID {
			n++
		}
	}
	if n > w.largest[set.UID] {
		cluster.Break(NoneTwice, "set %s has %d pods, it never was to have more than %d", set.Name, n, w.largest[set.UID])
	}
}
