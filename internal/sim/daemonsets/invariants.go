package daemonsets

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload"
	"carob/internal/core/workload/daemonset"
	"carob/internal/sim/fakeapi"
)

func surges(d *appsv1.DaemonSet) bool {
	r := d.Spec.UpdateStrategy.RollingUpdate
	return r != nil && r.MaxSurge.IntValue() > 0
}

// created checks a pod that the controller created for a node, by the controller's view.
func (w *world) created(in daemonset.Input, node string, made fakeapi.Object) {
	for _, n := range in.Nodes {
		if run, _ := daemonset.NewEligible(in.Set).Of(n); n.Name == node && !run {
			fakeapi.Break(Eligible, "%s is made for %s", made.GetName(), node)
		}
	}
	others := 0
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		unseen := w.unanswered[p.UID] && w.c.pods.Get(p.UID) == nil // the controller could not have observed it yet
		if p.UID == made.GetUID() || daemonset.Target(p) != node || workload.Terminal(p) || unseen {
			continue
		}
		switch surge := surges(in.Set); {
		case surge && p.DeletionTimestamp != nil:
		case surge && p.Labels[appsv1.ControllerRevisionHashLabelKey] != in.Hash:
			others++
		default:
			fakeapi.Break(OnePod, "%s of the same kind is on %s when %s is made", p.Name, node, made.GetName())
		}
	}
	if others > 1 {
		fakeapi.Break(OnePod, "%d pods are on %s when %s is made", others, node, made.GetName())
	}
}

// planned checks the deletions of a plan, by the controller's view.
func (w *world) planned(in daemonset.Input, plan *daemonset.Plan) {
	r := in.Set.Spec.UpdateStrategy.RollingUpdate
	if r == nil || len(plan.Delete) == 0 {
		return
	}
	eligible, without, taken := daemonset.NewEligible(in.Set), 0, false
	for _, n := range in.Nodes {
		if run, _ := eligible.Of(n); !run {
			continue
		}
		before, after := 0, 0
		kinds, several := map[bool]int{}, false // new and old pods; of several one is kept by age (W4.37, W4.38)
		for _, p := range in.Pods {
			if daemonset.Target(p) != n.Name || !workload.Active(p) {
				continue
			}
			older := surges(in.Set) && p.Labels[appsv1.ControllerRevisionHashLabelKey] != in.Hash
			kinds[older]++
			several = several || kinds[older] > 1
			if !workload.Ready(p) {
				continue
			}
			before++
			if !slices.Contains(plan.Delete, p) {
				after++
			}
		}
		if after == 0 {
			without++
			taken = taken || before > 0 && !several
		}
	}
	if taken && without > r.MaxUnavailable.IntValue() {
		fakeapi.Break(Minimum, "%d nodes are left without an available pod, %d may", without, r.MaxUnavailable.IntValue())
	}
}

// checkEnd checks the final state.
func (w *world) checkEnd() {
	d, ok := w.Get(w.uid).(*appsv1.DaemonSet)
	if !ok {
		fakeapi.Break(Ends, "the set is gone")
	}
	eligible, wanted, wrong := daemonset.NewEligible(d), int32(0), int32(0)
	on := map[string][]*corev1.Pod{}
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		on[daemonset.Target(p)] = append(on[daemonset.Target(p)], p)
	}
	for _, n := range fakeapi.All[*corev1.Node](w.API) {
		pods := on[n.Name]
		delete(on, n.Name)
		run, stay := eligible.Of(n)
		switch {
		case run && (len(pods) != 1 || !workload.Ready(pods[0])), !stay && len(pods) > 0:
			fakeapi.Break(Ends, "%d pods on %s, run %t, stay %t", len(pods), n.Name, run, stay)
		case run && d.Spec.UpdateStrategy.RollingUpdate != nil &&
			pods[0].Labels[appsv1.ControllerRevisionHashLabelKey] != hash(d):
			fakeapi.Break(Ends, "the pod on %s is old", n.Name)
		case run:
			wanted++
		case len(pods) > 0:
			wrong++
		}
	}
	for node := range on {
		fakeapi.Break(Ends, "pods are left for %s, which is deleted", node)
	}
	s := d.Status
	if s.ObservedGeneration != d.Generation || s.DesiredNumberScheduled != wanted || s.NumberAvailable != wanted ||
		s.NumberMisscheduled != wrong {
		fakeapi.Break(Ends, "%d nodes with a pod, %d wrong ones: status %+v", wanted, wrong, s)
	}
}
