package placement

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// L2.55: a pod that is nominated to a node counts there for pods of the same or a lower priority, for their affinity
// and for its own, too; it does not count for its own decision, and not for more important pods.
func TestNominatedPodsCount(t *testing.T) {
	zone := corev1.LabelTopologyZone
	for name, test := range map[string]struct {
		nominated, pod *corev1.Pod
		want           string // empty: it fits
	}{
		"its anti-affinity": {makePod("first", affine(true, zone, "x"), priority(5)), makePod("p", app("x")),
			reasonOthersAffinity},
		"that of the other pod": {makePod("first", app("x"), priority(5)), makePod("p", affine(true, zone, "x")),
			reasonAntiAffinity},
		"both": {makePod("first", app("x"), affine(true, zone, "x"), priority(5)),
			makePod("p", app("x"), affine(true, zone, "x"), priority(5)), reasonAntiAffinity},
		"spread": {makePod("first", app("x"), priority(5)), makePod("p", app("x"), spreads(zone, 1, "x")),
			reasonSpread},
		"affinity is not met by it": {makePod("first", app("x"), priority(5)), makePod("p", affine(false, zone, "x")),
			reasonAffinity},
		"a more important pod": {makePod("first", app("x"), affine(true, zone, "x"), priority(5)),
			makePod("p", app("x"), priority(6)), ""},
		"others": {makePod("first", app("y"), affine(true, zone, "z"), priority(5)),
			makePod("p", app("x"), affine(true, zone, "x"), spreads(zone, 1, "x")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf([]*corev1.Node{makeNode("n1", "1", "1Gi", label(zone, "a")),
				makeNode("n2", "1", "1Gi", label(zone, "b"), cordoned)})
			before := Prepare(test.pod)
			c.Decide(before, 0) // what is kept of this decision is brought up to date
			first := Prepare(test.nominated)
			c.Nominate(first, "n1")
			p, want := Prepare(test.pod), ""
			if test.want == "" {
				want = "n1"
			}
			for range 2 {
				d := c.Decide(p, 0)
				if d.Node != want || want == "" && !strings.Contains(d.Message(""), test.want) {
					t.Errorf("on %q: %s; want %q: %s", d.Node, d.Message(""), want, test.want)
				}
				if d := c.Decide(first, 0); d.Node != "n1" {
					t.Errorf("the nominated pod is on %q: %s", d.Node, d.Message(""))
				}
			}
			e := c.RemoveNomination(first.Object.UID)
			d := c.Decide(p, 0)
			helps, _ := c.Helps(p, []Filter{PodTopologySpread, InterPodAffinity}, e)
			if d.Node != "" && want == "" && !helps {
				t.Error("the end of the nomination does not wake the pod")
			}
			if d.Node != "n1" && test.want != reasonAffinity {
				t.Errorf("afterwards: on %q: %s", d.Node, d.Message(""))
			}
		})
	}
}

// A pod that a nominated pod keeps from a node is tried again when the node loses the label that the anti-affinity of
// the other one names.
func TestNodeLosesTheLabelOfANominatedPod(t *testing.T) {
	zone := corev1.LabelTopologyZone
	c := clusterOf([]*corev1.Node{makeNode("n1", "1", "1Gi", label(zone, "a"))})
	c.Nominate(Prepare(makePod("first", affine(true, zone, "x"), priority(5))), "n1")
	p := Prepare(makePod("p", app("x")))
	d := c.Decide(p, 0)
	if d.Node != "" {
		t.Fatalf("on %q", d.Node)
	}
	e := c.SetNode(makeNode("n1", "1", "1Gi"))
	if helps, _ := c.Helps(p, d.Filters(), e); !helps {
		t.Error("the change of the node does not wake the pod")
	}
	if d := c.Decide(p, 0); d.Node != "n1" {
		t.Errorf("on %q: %s", d.Node, d.Message(""))
	}
}
