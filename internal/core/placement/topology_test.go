package placement

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Users may name any number of topology keys: what a decision counts, and what is kept, is limited by the labels of the
// nodes.
func TestUnknownTopologyKeys(t *testing.T) {
	hostile := makePod("hostile", app("x"))
	all := &metav1.LabelSelector{}
	affinity := &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}, PodAntiAffinity: &corev1.PodAntiAffinity{}}
	for i := range 100 {
		term := corev1.PodAffinityTerm{LabelSelector: all, NamespaceSelector: all, TopologyKey: fmt.Sprint("key-", i)}
		affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(
			affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term)
		affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
			affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: term})
		affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(
			affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term)
	}
	hostile.Spec.Affinity = affinity
	spread := makePod("spread")
	for i := range 100 {
		spreads(fmt.Sprint("key-", i), 1, "x")(spread)
	}
	c := clusterOf([]*corev1.Node{makeNode("n1", "1", "1Gi"), makeNode("n2", "1", "1Gi", label("key-7", "a"))},
		placed{"n1", hostile}, placed{"n2", hostile2(hostile)})
	p := Prepare(makePod("p"))
	if d := c.Decide(p, 0); d.Node != "n1" {
		t.Errorf("on %q: %s", d.Node, d.Message(""))
	}
	c.Decide(Prepare(spread), 0)
	c.Decide(Prepare(hostile), 0)
	s := c.affinityState(p)
	own := c.affinityState(Prepare(hostile))
	if len(s.repelled) != 1 || len(c.attraction(p).sums) != 1 || len(own.anti) != 1 || len(own.affine) != 2 {
		t.Errorf("%d, %d, %d, %d counts", len(s.repelled), len(c.attraction(p).sums), len(own.anti), len(own.affine))
	}
	if len(c.topologies) > 2 {
		t.Errorf("%d topologies are kept", len(c.topologies))
	}
	// A key that a node gets later counts from then on.
	c.SetNode(makeNode("n1", "1", "1Gi", label("key-9", "b")))
	if d := c.Decide(p, 0); d.Node != "" {
		t.Errorf("on %q", d.Node)
	}
}

// hostile2 is another pod with the same affinity.
func hostile2(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.Name, p.UID = "hostile2", "hostile2"
	return p
}
