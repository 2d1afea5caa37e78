package placement

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestEventHintsAreComplete: when Helps returns false for an event, the pod fits nowhere after it, and
// no preemption is possible either (L2.5).
func TestEventHintsAreComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genCluster(t)
		pod := genPod(t, "new")
		priority(rapid.Int32Range(0, 4).Draw(t, "own priority"))(pod)
		p := Prepare(pod)
		names := []string{"n0", "n1", "n2", "n9"}
		again := func() (placed bool, refused []Filter) {
			d := c.Decide(p, 0)
			if d.Node != "" {
				return true, nil
			}
			pre := c.Preempt(p, d, nil)
			return pre.Node != "", append(d.Filters(), pre.Filters...)
		}
		placed, refused := again()
		check := func(t *rapid.T, what string, e Event) {
			if placed {
				return
			}
			helps, still := c.Helps(p, refused, e)
			now, by := again()
			if now && !helps {
				t.Fatalf("%s made room for a pod that was refused by %v, but the hint says that it can't", what, refused)
			}
			placed, refused = now, still
			if helps {
				refused = by // a scheduler makes another attempt only then
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"pod": func(t *rapid.T) {
				o := genPod(t, fmt.Sprint("p", rapid.IntRange(0, 12).Draw(t, "which")))
				if rapid.IntRange(0, 3).Draw(t, "leaving") == 0 {
					o.DeletionTimestamp = &metav1.Time{}
				}
				if old := c.Pod(o.UID); old != nil { // of a pod with a node only this can change
					changed := old.Object.DeepCopy()
					changed.Labels, changed.DeletionTimestamp = o.Labels, o.DeletionTimestamp
					changed.Spec.Containers[0].Resources = o.Spec.Containers[0].Resources
					o = changed
				}
				check(t, "a pod", c.SetPod(Prepare(o), rapid.SampledFrom(names).Draw(t, "node")))
			},
			"gone": func(t *rapid.T) {
				check(t, "a pod that left",
					c.RemovePod(types.UID(fmt.Sprint("p", rapid.IntRange(0, 12).Draw(t, "which")))))
			},
			"node": func(t *rapid.T) {
				check(t, "a node", c.SetNode(genNode(t, rapid.SampledFrom(names).Draw(t, "node"))))
			},
			"no node": func(t *rapid.T) {
				check(t, "a node that left", c.RemoveNode(rapid.SampledFrom(names).Draw(t, "node")))
			},
			"reserve": func(t *rapid.T) {
				o := genPod(t, fmt.Sprint("q", rapid.IntRange(0, 1).Draw(t, "which")))
				check(t, "a reservation", c.Nominate(Prepare(o), rapid.SampledFrom(names).Draw(t, "node")))
			},
			"give back": func(t *rapid.T) {
				check(t, "the end of a reservation",
					c.RemoveNomination(types.UID(fmt.Sprint("q", rapid.IntRange(0, 1).Draw(t, "which")))))
			},
		})
	})
}

// Events that can't help a pod must not re-queue it: one case for each filter (L2.5).
func TestEventHints(t *testing.T) {
	node := func(options ...nodeOption) *corev1.Node { return makeNode("n1", "1", "1Gi", options...) }
	zone := corev1.LabelTopologyZone
	big := makePod("p", requests("cpu", "1"))
	declares := func(names ...string) nodeOption { return func(n *corev1.Node) { n.Status.DeclaredFeatures = names } }
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		node *corev1.Node
		on   []*corev1.Pod
		then func(c *Cluster) Event
		want bool
	}{
		"a heartbeat": {big, node(), []*corev1.Pod{makePod("a", requests("cpu", "1"))},
			func(c *Cluster) Event { return c.SetNode(node()) }, false},
		"room": {big, node(), []*corev1.Pod{makePod("a", requests("cpu", "1"))},
			func(c *Cluster) Event { return c.RemovePod("a") }, true},
		"too little room": {big, node(),
			[]*corev1.Pod{makePod("a", requests("cpu", "500m")), makePod("b", requests("cpu", "500m"))},
			func(c *Cluster) Event { return c.RemovePod("a") }, false},
		"little room beside a lesser pod": {makePod("p", requests("cpu", "1"), priority(2)), node(),
			[]*corev1.Pod{makePod("a", requests("cpu", "500m"), priority(3)),
				makePod("b", requests("cpu", "500m"), priority(1))}, func(c *Cluster) Event { return c.RemovePod("a") },
			true},
		"cpu of a node without the label": {makePod("p", requests("cpu", "2"), selects("disk", "ssd")), node(), nil,
			func(c *Cluster) Event { return c.SetNode(makeNode("n1", "4", "1Gi")) }, false},
		"uncordoned": {big, node(cordoned), nil,
			func(c *Cluster) Event { return c.SetNode(node()) }, true},
		"a taint of a cordoned node": {big, node(cordoned, taint("k", corev1.TaintEffectNoSchedule)), nil,
			func(c *Cluster) Event { return c.SetNode(node(cordoned)) }, false},
		"the taint": {big, node(taint("k", corev1.TaintEffectNoSchedule)), nil,
			func(c *Cluster) Event { return c.SetNode(node()) }, true},
		"another taint": {big,
			node(taint("k", corev1.TaintEffectNoSchedule), taint("l", corev1.TaintEffectNoSchedule)), nil,
			func(c *Cluster) Event { return c.SetNode(node(taint("l", corev1.TaintEffectNoSchedule))) }, false},
		"the label": {makePod("p", selects("disk", "ssd")), node(), nil,
			func(c *Cluster) Event { return c.SetNode(node(label("disk", "ssd"))) }, true},
		"another label": {makePod("p", selects("disk", "ssd")), node(), nil,
			func(c *Cluster) Event { return c.SetNode(node(label("disk", "hdd"))) }, false},
		"the port": {makePod("p", hostPort(80, "")), node(),
			[]*corev1.Pod{makePod("a", hostPort(80, ""))}, func(c *Cluster) Event { return c.RemovePod("a") }, true},
		"another port": {makePod("p", hostPort(80, "")), node(),
			[]*corev1.Pod{makePod("a", hostPort(80, "")), makePod("b", hostPort(81, ""))},
			func(c *Cluster) Event { return c.RemovePod("b") }, false},
		"a pod that it is spread from": {makePod("p", app("x"), spreads(zone, 1, "x")), node(),
			[]*corev1.Pod{makePod("a", app("x"))}, func(c *Cluster) Event { return c.RemovePod("a") }, true},
		"a pod that does not count": {makePod("p", app("x"), spreads(zone, 1, "x")), node(),
			[]*corev1.Pod{makePod("a", app("y"))}, func(c *Cluster) Event { return c.RemovePod("a") }, false},
		"a label that is not a domain": {makePod("p", app("x"), spreads(zone, 1, "x")), node(), nil,
			func(c *Cluster) Event { return c.SetNode(node(label("disk", "ssd"))) }, false},
		"the domain": {makePod("p", app("x"), spreads(zone, 1, "x")), node(), nil,
			func(c *Cluster) Event { return c.SetNode(node(label(zone, "a"))) }, true},
		"a friend": {makePod("p", affine(false, zone, "x")), node(label(zone, "a")), nil,
			func(c *Cluster) Event { return c.SetPod(Prepare(makePod("a", app("x"))), "n1") }, true},
		"no friend": {makePod("p", affine(false, zone, "x")), node(label(zone, "a")), nil,
			func(c *Cluster) Event { return c.SetPod(Prepare(makePod("a", app("y"))), "n1") }, false},
		"a foe that leaves": {makePod("p", affine(true, zone, "x")), node(label(zone, "a")),
			[]*corev1.Pod{makePod("a", app("x"))}, func(c *Cluster) Event { return c.RemovePod("a") }, true},
		"one that hates it leaves": {makePod("p", app("x")), node(label(zone, "a")),
			[]*corev1.Pod{makePod("a", affine(true, zone, "x"))}, func(c *Cluster) Event { return c.RemovePod("a") },
			true},
		"a stranger leaves": {makePod("p", affine(true, zone, "x")), node(label(zone, "a")),
			[]*corev1.Pod{makePod("a", app("x")), makePod("b", app("z"))},
			func(c *Cluster) Event { return c.RemovePod("b") }, false},
		"a stranger comes to a full node": {big, node(), []*corev1.Pod{makePod("a", requests("cpu", "1"))},
			func(c *Cluster) Event { return c.SetPod(Prepare(makePod("b")), "n1") }, false},
		"a pod that shrinks": {big, node(), []*corev1.Pod{makePod("a", requests("cpu", "1"))},
			func(c *Cluster) Event { return c.SetPod(Prepare(makePod("a")), "n1") }, true},
		"the feature": {withRestartAll(makePod("p")), node(), nil,
			func(c *Cluster) Event { return c.SetNode(node(declares("RestartAllContainersOnContainerExits"))) }, true},
		"another feature": {withRestartAll(makePod("p")), node(), nil,
			func(c *Cluster) Event { return c.SetNode(node(declares("Other"))) }, false},
		"a namespace, of no concern": {big, node(), []*corev1.Pod{makePod("a", requests("cpu", "1"))},
			func(c *Cluster) Event { return c.SetNamespace("default", map[string]string{"a": "b"}) }, false},
		"a namespace": {makePod("p", affine(false, zone, "x")), node(label(zone, "a")), nil,
			func(c *Cluster) Event { return c.SetNamespace("default", map[string]string{"a": "b"}) }, true},
		"a reservation that is given back": {big, node(), []*corev1.Pod{},
			func(c *Cluster) Event { return c.RemoveNomination("first") }, true},
		"room that another pod waits for": {big, node(), []*corev1.Pod{}, func(c *Cluster) Event {
			c.SetPod(Prepare(makePod("victim", requests("cpu", "1"))), "n1")
			return c.RemovePod("victim")
		}, false},
		"another that is given back of two": {makePod("p", requests("cpu", "2")), node(), []*corev1.Pod{},
			func(c *Cluster) Event { return c.RemoveNomination("first") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf([]*corev1.Node{test.node})
			for _, o := range test.on {
				c.SetPod(Prepare(o), "n1")
			}
			if test.on != nil && len(test.on) == 0 {
				c.Nominate(Prepare(makePod("first", requests("cpu", "1"), priority(5))), "n1")
			}
			p := Prepare(test.pod)
			d := c.Decide(p, 0)
			if d.Node != "" {
				t.Fatal("fits already")
			}
			refused := append(d.Filters(), c.Preempt(p, d, nil).Filters...)
			if got, _ := c.Helps(p, refused, test.then(c)); got != test.want {
				t.Errorf("%v, want %v; refused by %v", got, test.want, refused)
			}
		})
	}
}

func withRestartAll(p *corev1.Pod) *corev1.Pod {
	always := corev1.ContainerRestartPolicyNever
	c := &p.Spec.Containers[0]
	c.RestartPolicy = &always
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn,
			Values: []int32{1}}}}
	return p
}

// TestRequiredFeatures: a node that does not declare what the pod needs is refused, for good (L2.30, L2.32).
func TestRequiredFeatures(t *testing.T) {
	p := Prepare(withRestartAll(makePod("p")))
	c := clusterOf([]*corev1.Node{makeNode("n1", "1", "1Gi")})
	d := c.Decide(p, 0)
	want := "0/1 nodes are available: 1 node(s) didn't match Pod's required features. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
	if got := d.Message(c.Preempt(p, d, nil).Message); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	n := makeNode("n1", "1", "1Gi")
	n.Status.DeclaredFeatures = []string{"RestartAllContainersOnContainerExits"}
	c.SetNode(n)
	if d := c.Decide(p, 0); d.Node != "n1" {
		t.Errorf("%+v", d)
	}
}

// ownedBy makes the pod one of a ReplicaSet's.
func ownedBy(name string) podOption {
	yes := true
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name,
			Controller: &yes}}
	}
}

// TestSpreadByDefault: the pods of a Service or of a workload are spread over nodes
// and zones, without a constraint of their own (L2.10).
func TestSpreadByDefault(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	for name, test := range map[string]struct {
		owner Owner
		pod   podOption
		want  bool
	}{
		"service":              {Owner{Service, "default", "s"}, app("x"), true},
		"service elsewhere":    {Owner{Service, "other", "s"}, app("x"), false},
		"replica set":          {Owner{ReplicaSet, "default", "r"}, ownedBy("r"), true},
		"another replica set":  {Owner{ReplicaSet, "default", "r"}, ownedBy("q"), false},
		"no owner, no service": {Owner{ReplicaSet, "default", "r"}, app("x"), false},
	} {
		t.Run(name, func(t *testing.T) {
			c := NewCluster()
			for i := range 4 {
				// The first node has so much more room that it wins unless the pods are spread.
				cpu := "100"
				if i == 0 {
					cpu = "10000"
				}
				c.SetNode(makeNode(fmt.Sprint("n", i), cpu, cpu+"Gi",
					label(corev1.LabelTopologyZone, fmt.Sprint("z", i%2))))
			}
			c.SetOwner(test.owner, selector)
			on := map[string]int{}
			for i := range 8 {
				p := makePod(fmt.Sprint("p", i), app("x"), requests("cpu", "10"), requests("memory", "10Gi"))
				test.pod(p)
				q := Prepare(p)
				d := c.Decide(q, 0)
				on[d.Node]++
				c.SetPod(q, d.Node)
			}
			if spread := on["n0"] == 2 && len(on) == 4; spread != test.want {
				t.Errorf("pods on nodes: %v; want spread %v", on, test.want)
			}
			c.RemoveOwner(test.owner)
			if len(c.services)+len(c.controllers) != 0 {
				t.Error("something is left behind")
			}
		})
	}
}

// TestAffinityToNamedNodes: pods of DaemonSets name their node; the other nodes are not filtered,
// and the message names the plugin that excluded them.
func TestAffinityToNamedNodes(t *testing.T) {
	named := func(names ...[]string) podOption {
		return func(p *corev1.Pod) {
			var fields []corev1.NodeSelectorRequirement
			for _, n := range names {
				fields = append(fields,
					corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: n})
			}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: fields}}}}}
		}
	}
	const notHelpful = " preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string // node or message
	}{
		"there": {makePod("p", named([]string{"n2"})), "n2"},
		"full": {makePod("p", named([]string{"n2"}), requests("cpu", "2")),
			"0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]." +
				notHelpful},
		"not there": {makePod("p", named([]string{"n7"})),
			"0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [NodeAffinity]." + notHelpful},
		"conflict": {makePod("p", named([]string{"n1"}, []string{"n2"})),
			"0/3 nodes are available: pod affinity terms conflict." + notHelpful},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf([]*corev1.Node{makeNode("n1", "1", "1Gi"), makeNode("n2", "1", "1Gi"),
				makeNode("n3", "1", "1Gi")})
			p := Prepare(test.pod)
			d := c.Decide(p, 0)
			got := d.Node
			if got == "" {
				got = d.Message(c.Preempt(p, d, nil).Message)
				if !slices.Contains(d.Filters(), NodeAffinity) {
					t.Error("a new node would not re-queue it")
				}
			}
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// While the victims of a pod end, room that another preemption could use elsewhere does not help it: it preempts
// nothing before (L2.40).
func TestVictimsEndFirst(t *testing.T) {
	for _, ends := range []bool{true, false} {
		victim := makePod("victim", requests("cpu", "2"), priority(1))
		if ends {
			victim.DeletionTimestamp = &metav1.Time{}
			victim.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget,
				Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler}}
		}
		c := clusterOf([]*corev1.Node{makeNode("n1", "2", "4Gi"), makeNode("n2", "2", "4Gi")},
			placed{"n1", victim}, placed{"n2", makePod("x", requests("cpu", "1"), priority(1))},
			placed{"n2", makePod("y", requests("cpu", "1"), priority(1))})
		pod := makePod("p", requests("cpu", "2"), priority(9))
		pod.Status.NominatedNodeName = "n1"
		p := Prepare(pod)
		c.Nominate(p, "n1")
		if helps, _ := c.Helps(p, []Filter{NodeResourcesFit}, c.RemovePod("x")); helps == ends {
			t.Errorf("the victim ends: %t, the event helps: %t", ends, helps)
		}
		if helps, _ := c.Helps(p, []Filter{NodeResourcesFit}, c.RemovePod("y")); !helps {
			t.Error("a free node must help")
		}
	}
}
