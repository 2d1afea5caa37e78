package statefulsets

import (
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload"
	"carob/internal/core/workload/statefulset"
	"carob/internal/sim/fakeapi"
)

// ordinal parses the end of a pod's name independently, because the plan may be wrong.
func ordinal(p fakeapi.Object) int {
	n, err := strconv.Atoi(p.GetName()[strings.LastIndexByte(p.GetName(), '-')+1:])
	if err != nil {
		fakeapi.Break(OneOrdinal, "%s has no ordinal", p.GetName())
	}
	return n
}

// span returns the first ordinal of a set, and the one after the last.
func span(s *appsv1.StatefulSet) (first, end int) {
	if s.Spec.Ordinals != nil {
		first = int(s.Spec.Ordinals.Start)
	}
	return first, first + int(*s.Spec.Replicas)
}

// created checks a pod that the controller created.
func (w *world) created(made fakeapi.Object) {
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		if p.UID != made.GetUID() && ordinal(p) == ordinal(made) {
			fakeapi.Break(OneOrdinal, "%s and %s", p.Name, made.GetName())
		}
	}
}

// planned checks a plan by the controller's view.
func (w *world) planned(in statefulset.Input, plan *statefulset.Plan) {
	first, end := span(in.Set)
	within := func(o int) bool { return o >= first && o < end }
	available := map[int]bool{}
	ends := -1 // the highest pod that is out of range and being deleted
	for _, p := range in.Pods {
		ok, _ := workload.Available(p, in.Set.Spec.MinReadySeconds, in.Now)
		available[ordinal(p)] = ok && p.DeletionTimestamp == nil
		if !within(ordinal(p)) && p.DeletionTimestamp != nil {
			ends = max(ends, ordinal(p))
		}
	}
	ordered := in.Set.Spec.PodManagementPolicy == appsv1.OrderedReadyPodManagement
	removed, taken := 0, false
	for _, stage := range plan.Stages {
		for _, step := range stage {
			o := ordinal(step.Pod)
			if step.Action == statefulset.Create {
				for lower := first; ordered && lower < o; lower++ {
					if !available[lower] {
						fakeapi.Break(Order, "%d is made, %d is not available", o, lower)
					}
				}
				continue
			}
			if !within(o) {
				if removed++; ordered && (removed > 1 || ends > o) {
					fakeapi.Break(Order, "%d is removed as number %d, %d ends", o, removed, ends)
				}
				continue
			}
			taken = taken || available[o]
			available[o] = false
		}
	}
	missing, most := 0, 1
	if m := in.Set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable; m != nil {
		most = m.IntValue()
	}
	for o := first; o < end; o++ {
		if !available[o] {
			missing++
		}
	}
	if taken && missing > most {
		fakeapi.Break(Minimum, "%d pods are left unavailable, %d may be", missing, most)
	}
}

// checkEnd checks the final state.
func (w *world) checkEnd() {
	s, ok := w.Get(w.uid).(*appsv1.StatefulSet)
	if !ok {
		fakeapi.Break(Ends, "the set is gone")
	}
	first, end := span(s)
	n := int32(0)
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		n++
		if o := ordinal(p); o < first || o >= end || !workload.Ready(p) || p.Spec.Containers[0].Image != "v1" {
			fakeapi.Break(Ends, "%s of %s is left, ready %t", p.Name, p.Spec.Containers[0].Image, workload.Ready(p))
		}
	}
	if st := s.Status; n != *s.Spec.Replicas || st.ObservedGeneration != s.Generation || st.AvailableReplicas != n ||
		st.UpdatedReplicas != n || st.CurrentRevision != st.UpdateRevision {
		fakeapi.Break(Ends, "%d pods, status %+v", n, st)
	}
	if all := len(fakeapi.All[*appsv1.ControllerRevision](w.API)); all > int(*s.Spec.RevisionHistoryLimit)+1 {
		fakeapi.Break(Ends, "%d revisions, the limit is %d", all, *s.Spec.RevisionHistoryLimit)
	}
}
