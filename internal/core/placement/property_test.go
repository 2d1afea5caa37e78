package placement

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"carob/internal/core/resources"
)

// Small sets of names and sizes, so that things collide.
func genNode(t *rapid.T, name string) *corev1.Node {
	n := makeNode(name, rapid.SampledFrom([]string{"1", "2"}).Draw(t, "cpu"), "4Gi",
		label(corev1.LabelTopologyZone, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")),
		allocatable("pods", rapid.SampledFrom([]string{"2", "5"}).Draw(t, "pods")))
	if rapid.Bool().Draw(t, "tainted") {
		taint("k", corev1.TaintEffectNoSchedule)(n)
	}
	n.Spec.Unschedulable = rapid.IntRange(0, 9).Draw(t, "cordon") == 0
	return n
}

func genPod(t *rapid.T, name string) *corev1.Pod {
	p := makePod(name, app(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")),
		requests("cpu", rapid.SampledFrom([]string{"0", "300m", "1"}).Draw(t, "cpu")),
		priority(rapid.Int32Range(0, 3).Draw(t, "priority")))
	other := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "other")
	key := rapid.SampledFrom([]string{corev1.LabelTopologyZone, corev1.LabelHostname}).Draw(t, "key")
	switch rapid.IntRange(0, 9).Draw(t, "wish") {
	case 0:
		affine(true, key, other)(p)
	case 1:
		affine(false, key, other)(p)
	case 2:
		spreads(key, 1, p.Labels["app"])(p)
	case 3:
		hostPort(80, "")(p)
	case 4:
		tolerates("k", "")(p)
	case 5:
		selects(corev1.LabelTopologyZone, "a")(p)
	}
	return p
}

func genCluster(t *rapid.T) *Cluster {
	c := NewCluster()
	for i := range rapid.IntRange(1, 5).Draw(t, "nodes") {
		c.SetNode(genNode(t, fmt.Sprint("n", i)))
	}
	for i := range rapid.IntRange(0, 12).Draw(t, "pods") {
		p := Prepare(genPod(t, fmt.Sprint("p", i)))
		if d := c.Decide(p, 0); d.Node != "" {
			c.SetPod(p, d.Node)
		}
	}
	return c
}

// TestChosenNodePasses: a chosen node passes every filter, the agent of that node
// admits the pod, and without a choice every node has a refusal.
func TestChosenNodePasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genCluster(t)
		p := Prepare(genPod(t, "new"))
		d := c.Decide(p, rapid.IntRange(0, 100).Draw(t, "start"))
		if d.Node == "" {
			if len(d.Refusals) != c.Len() {
				t.Fatalf("%d of %d nodes say why", len(d.Refusals), c.Len())
			}
			return
		}
		n := c.Node(d.Node)
		if r := c.refusal(c.stateFor(p), n); r != nil {
			t.Fatalf("chosen in spite of %v", r)
		}
		if r := n.Admit(p, "linux"); r != nil {
			t.Fatalf("the agent refuses what the scheduler chose: %v", r)
		}
		if again := c.Decide(p, d.Next); again.Node != d.Node {
			t.Fatalf("%s, then %s: the answer depends on where the search starts", d.Node, again.Node)
		}
	})
}

// TestOrderDoesNotMatter: the order in which nodes and pods are added changes neither feasibility nor reasons.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genCluster(t)
		p := Prepare(genPod(t, "new"))
		other := NewCluster()
		for _, name := range rapid.Permutation(slices.Sorted(maps.Keys(c.byName))).Draw(t, "order") {
			other.SetNode(c.byName[name].Object)
			for _, q := range slices.Backward(c.byName[name].pods) {
				other.SetPod(Prepare(q.Object), name)
			}
		}
		a, b := c.Decide(p, 0), other.Decide(p, 0)
		if a.Message("") != b.Message("") || a.Node != b.Node {
			t.Fatalf("%q %s against %q %s", a.Node, a.Message(""), b.Node, b.Message(""))
		}
	})
}

// withoutSummary excludes derived fields from a comparison.
var withoutSummary = cmpopts.IgnoreUnexported(Decision{})

// TestIncrementalEqualsFresh: after random changes, the Cluster equals one that is built anew from
// the remaining objects.
func TestIncrementalEqualsFresh(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genCluster(t)
		names := []string{"n0", "n1", "n2", "elsewhere"}
		service := Owner{Service, "default", "s"}
		regulars := []*Pod{Prepare(makePod("r1", app("x"), requests("cpu", "300m"))),
			Prepare(makePod("r2", app("x"), affine(true, corev1.LabelHostname, "x"))),
			Prepare(makePod("r3", app("y"), affine(false, corev1.LabelTopologyZone, "x"))),
			Prepare(makePod("r4", app("y"), spreads(corev1.LabelTopologyZone, 1, "y"))),
			Prepare(makePod("r5", app("y"), hostPort(80, "")))}
		for i := range rapid.IntRange(0, 4).Draw(t, "more") {
			regulars = append(regulars, Prepare(genPod(t, fmt.Sprint("r", 6+i))))
		}
		important := makePod("r10", app("x"), requests("cpu", "1"), priority(2))
		regulars = append(regulars, Prepare(important), Prepare(makePod("r11", app("x"), requests("cpu", "1"))))
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", UID: "b"},
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}}
		t.Repeat(map[string]func(*rapid.T){
			"pod": func(t *rapid.T) {
				c.SetPod(Prepare(genPod(t, fmt.Sprint("p", rapid.IntRange(0, 12).Draw(t, "which")))),
					rapid.SampledFrom(names).Draw(t, "node"))
			},
			"gone": func(t *rapid.T) {
				c.RemovePod(Prepare(makePod(fmt.Sprint("p", rapid.IntRange(0, 12).Draw(t, "which")))).Object.UID)
			},
			"node":    func(t *rapid.T) { c.SetNode(genNode(t, rapid.SampledFrom(names).Draw(t, "node"))) },
			"no node": func(t *rapid.T) { c.RemoveNode(rapid.SampledFrom(names).Draw(t, "node")) },
			"service": func(t *rapid.T) {
				c.SetOwner(service,
					&metav1.LabelSelector{
						MatchLabels: map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")}})
			},
			"no service": func(*rapid.T) { c.RemoveOwner(service) },
			"namespace": func(t *rapid.T) {
				c.SetNamespace("default",
					map[string]string{"n": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "label")})
			},
			"preempt": func(t *rapid.T) {
				if d := c.Decide(regulars[0], 0); d.Node == "" {
					c.Preempt(regulars[0], d, nil) // must not change the cache
				}
			},
			"nominate": func(t *rapid.T) {
				p := Prepare(genPod(t, fmt.Sprint("q", rapid.IntRange(0, 3).Draw(t, "which"))))
				if rapid.Bool().Draw(t, "regular") {
					p = rapid.SampledFrom(regulars).Draw(t, "pod")
				}
				c.Nominate(p, rapid.SampledFrom(names).Draw(t, "node"))
			},
			"nominated pod": func(t *rapid.T) { // counted, and nominated still
				if uids := slices.Sorted(maps.Keys(c.nominatedOn)); len(uids) > 0 {
					p := Prepare(genPod(t, string(rapid.SampledFrom(uids).Draw(t, "which"))))
					c.SetPod(p, rapid.SampledFrom(names).Draw(t, "node"))
				}
			},
			"no nomination": func(t *rapid.T) {
				if uids := slices.Sorted(maps.Keys(c.nominatedOn)); len(uids) > 0 {
					c.RemoveNomination(rapid.SampledFrom(uids).Draw(t, "which"))
				}
			},
			"budget": func(t *rapid.T) {
				changed := *budget
				changed.Status.DisruptionsAllowed = rapid.Int32Range(0, 2).Draw(t, "allowed")
				budget = &changed
			},
			"": func(t *rapid.T) {
				fresh := NewCluster()
				for _, n := range c.nodes {
					fresh.SetNode(n.Object)
				}
				for _, name := range slices.Sorted(maps.Keys(c.byName)) {
					for _, p := range c.byName[name].pods { // the order decides among equal victims
						fresh.SetPod(Prepare(p.Object), name)
					}
				}
				for name, labels := range c.services["default"] {
					fresh.SetOwner(Owner{Service, "default", name}, &metav1.LabelSelector{MatchLabels: labels})
				}
				fresh.SetNamespace("default", c.namespaces["default"])
				for name, pods := range c.nominated {
					for _, p := range pods {
						fresh.Nominate(Prepare(p.Object), name)
					}
				}
				victims := func(c *Cluster, p *Pod, d Decision) string {
					got := c.Preempt(p, d, []*policyv1.PodDisruptionBudget{budget})
					text := fmt.Sprint(got.Node, got.Message, got.Filters)
					for _, v := range got.Victims {
						text += " " + v.Object.Name
					}
					return text
				}
				// Some of the pods come again and again, so that what is remembered for them is used.
				for _, p := range regulars {
					if a, b := c.Decide(p, 0), fresh.Decide(Prepare(p.Object), 0); !cmp.Equal(a, b, withoutSummary) {
						t.Fatalf("%s: %s", p.Object.Name, cmp.Diff(a, b, withoutSummary))
					} else if a.Message("") != b.Message("") || !slices.Equal(a.Filters(), b.Filters()) {
						t.Fatalf("%s: %q %v against %q %v", p.Object.Name, a.Message(""), a.Filters(), b.Message(""),
							b.Filters())
					} else if of, other := victims(c, p, a), victims(fresh, Prepare(p.Object), b); a.Node == "" &&
						of != other {
						t.Fatalf("%s preempts %s, with a fresh cluster %s", p.Object.Name, of, other)
					}
				}
				p := Prepare(genPod(t, "new"))
				a, b := c.Decide(p, 0), fresh.Decide(p, 0)
				if a.Node != b.Node || a.Message("") != b.Message("") {
					t.Fatalf("%q %s against %q %s", a.Node, a.Message(""), b.Node, b.Message(""))
				}
				if len(c.antiAffine) != len(fresh.antiAffine) || len(c.byName) != len(fresh.byName) ||
					len(c.byNamespace) != len(fresh.byNamespace) || len(c.labelled) != len(fresh.labelled) {
					t.Fatal("something is left behind")
				}
			},
		})
	})
}

// TestPreemptionIsEnough: without the victims the pod fits, every victim is needed,
// and all of them are less important.
func TestPreemptionIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genCluster(t)
		pod := genPod(t, "new")
		priority(9)(pod)
		p := Prepare(pod)
		d := c.Decide(p, 0)
		if d.Node != "" {
			return
		}
		got := c.Preempt(p, d, nil)
		if may := c.MayPreempt(p, d); (may.Node == "") != (got.Node == "") || may.Message != got.Message ||
			!cmp.Equal(may.Filters, got.Filters) {
			t.Fatalf("it may preempt: %+v, it does: %+v", may, got)
		}
		if got.Node == "" {
			if got.Message == "" {
				t.Fatal("neither a node nor a reason")
			}
			return
		}
		if after := c.Decide(p, 0); !cmp.Equal(after, d, withoutSummary) {
			t.Fatal("looking for victims changed the cluster")
		}
		for _, v := range got.Victims {
			if v.Priority >= p.Priority {
				t.Fatal("a victim is not less important")
			}
			c.RemovePod(v.Object.UID)
		}
		if r := c.refusal(c.stateFor(p), c.Node(got.Node)); r != nil {
			t.Fatalf("still refused: %v", r)
		}
		for _, v := range got.Victims {
			c.SetPod(v, got.Node)
			if c.refusal(c.stateFor(p), c.Node(got.Node)) == nil {
				t.Fatalf("%s was removed without need", v.Object.Name)
			}
			c.RemovePod(v.Object.UID)
		}
	})
}

// TestReservationsHold: resources that are reserved for a pod cannot be used by a less important
// one.
func TestReservationsHold(t *testing.T) {
	c := clusterOf([]*corev1.Node{makeNode("n1", "1", "1Gi")})
	c.Nominate(Prepare(makePod("important", requests("cpu", "1"), priority(9))), "n1")
	if d := c.Decide(Prepare(makePod("p", requests("cpu", "1"), priority(1))), 0); d.Node != "" {
		t.Error("took reserved room")
	}
	if d := c.Decide(Prepare(makePod("p", requests("cpu", "1"), priority(10))), 0); d.Node == "" {
		t.Error("a more important pod must not wait for it")
	}
	c.RemoveNomination("important")
	if d := c.Decide(Prepare(makePod("p", requests("cpu", "1"), priority(1))), 0); d.Node == "" {
		t.Error("still reserved")
	}
	if !resources.FitsNow(&c.Node("n1").Ledger, resources.Demand{}) {
		t.Error("a reservation must not be counted")
	}
}
