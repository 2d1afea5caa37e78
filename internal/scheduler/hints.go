package scheduler

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"carob/internal/core/placement"
)

// change says which filters may answer differently now; nil for none, everything for all (L2.5).
type change []placement.Filter

// What changes of pods that have a node can help.
var (
	podLeft   = change{placement.NodePorts, placement.NodeResourcesFit, placement.PodTopologySpread, placement.InterPodAffinity}
	podCame   = change{placement.PodTopologySpread, placement.InterPodAffinity}
	podShrank = change{placement.NodeResourcesFit}
	nodeLeft  = change{placement.PodTopologySpread}
	nodeCame  = change{placement.NodeName, placement.NodeUnschedulable, placement.TaintToleration, placement.NodeAffinity,
		placement.NodePorts, placement.NodeResourcesFit, placement.PodTopologySpread, placement.InterPodAffinity}
	namespaceChanged = change{placement.InterPodAffinity}
)

// helps reports whether a pod that was refused by these filters is worth another
// attempt. One that met no node at all had no filter to refuse it.
func (c change) helps(refused []placement.Filter) bool {
	if len(refused) == 0 {
		return len(c) > 0
	}
	return slices.ContainsFunc(refused, func(f placement.Filter) bool { return slices.Contains(c, f) })
}

// nodeChange compares two versions of a node; heartbeats change nothing.
func nodeChange(before, after *corev1.Node) change {
	if before == nil {
		return nodeCame
	}
	var c change
	if before.Spec.Unschedulable != after.Spec.Unschedulable {
		c = append(c, placement.NodeUnschedulable)
	}
	if !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) {
		c = append(c, placement.TaintToleration, placement.PodTopologySpread)
	}
	if !maps.Equal(before.Labels, after.Labels) {
		c = append(c, placement.NodeAffinity, placement.PodTopologySpread, placement.InterPodAffinity)
	}
	if !equality.Semantic.DeepEqual(before.Status.Allocatable, after.Status.Allocatable) {
		c = append(c, placement.NodeResourcesFit)
	}
	return c
}

// boundChange compares two versions of a pod that has a node.
func boundChange(before, after *placement.Pod) change {
	if before == nil {
		return podCame
	}
	var c change
	if !maps.Equal(before.Object.Labels, after.Object.Labels) ||
		(before.Object.DeletionTimestamp == nil) != (after.Object.DeletionTimestamp == nil) {
		c = append(c, podCame...)
	}
	if after.Demand.MilliCPU < before.Demand.MilliCPU || after.Demand.Memory < before.Demand.Memory {
		c = append(c, podShrank...)
	}
	return c
}

// differs reports whether a new version of a waiting pod can change a decision;
// the scheduler's own status writes must not.
func differs(before, after *placement.Pod) bool {
	a, b := before.Object, after.Object
	return !maps.Equal(a.Labels, b.Labels) || !equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}
