package placement

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type nodeOption func(*corev1.Node)

func makeNode(name, cpu, memory string, options ...nodeOption) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory), "pods": resource.MustParse("110"),
		}},
	}
	for _, o := range options {
		o(n)
	}
	return n
}

func label(key, value string) nodeOption { return func(n *corev1.Node) { n.Labels[key] = value } }
func taint(key string, effect corev1.TaintEffect) nodeOption {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
}
func allocatable(name, q string) nodeOption {
	return func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceName(name)] = resource.MustParse(q) }
}
func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

type podOption func(*corev1.Pod)

func makePod(name string, options ...podOption) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

func requests(name, q string) podOption {
	return func(p *corev1.Pod) {
		r := &p.Spec.Containers[0].Resources
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[corev1.ResourceName(name)] = resource.MustParse(q)
	}
}
func app(value string) podOption { return func(p *corev1.Pod) { p.Labels["app"] = value } }
func hostPort(port int32, ip string) podOption {
	return func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Ports = append(c.Ports, corev1.ContainerPort{HostPort: port, HostIP: ip, Protocol: corev1.ProtocolTCP})
	}
}
func tolerates(key string, effect corev1.TaintEffect) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations,
			corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect})
	}
}
func selects(key, value string) podOption {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}
func priority(n int32) podOption { return func(p *corev1.Pod) { p.Spec.Priority = &n } }
func startedAt(second int64) podOption {
	return func(p *corev1.Pod) { t := metav1.NewTime(time.Unix(second, 0)); p.Status.StartTime = &t }
}
func affine(anti bool, key, appValue string) podOption {
	return func(p *corev1.Pod) {
		terms := []corev1.PodAffinityTerm{{TopologyKey: key,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": appValue}}}}
		if p.Spec.Affinity == nil {
			p.Spec.Affinity = &corev1.Affinity{}
		}
		if anti {
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: terms}
		} else {
			p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
		}
	}
}
func spreads(key string, skew int32, appValue string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: skew, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": appValue}},
		})
	}
}

// placed is a pod that is counted on a node.
type placed struct {
	node string
	pod  *corev1.Pod
}

func clusterOf(nodes []*corev1.Node, pods ...placed) *Cluster {
	c := NewCluster()
	for _, n := range nodes {
		c.SetNode(n)
	}
	for _, p := range pods {
		c.SetPod(Prepare(p.pod), p.node)
	}
	return c
}

func TestMessages(t *testing.T) { // L2.20–L2.27, L2.32, L2.40, L2.41
	one := func(options ...nodeOption) []*corev1.Node {
		return []*corev1.Node{makeNode("n1", "1", "1Gi", options...)}
	}
	const notHelpful = " preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
	const noVictims = " preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
	never := corev1.PreemptNever
	zone := corev1.LabelTopologyZone
	for name, test := range map[string]struct {
		nodes []*corev1.Node
		on    []placed
		pod   *corev1.Pod
		want  string
	}{
		"no nodes": {nil, nil, makePod("p"), "no nodes available to schedule pods"},
		"cpu, hopeless": {one(), nil, makePod("p", requests("cpu", "2")),
			"0/1 nodes are available: 1 Insufficient cpu." + notHelpful},
		"cpu, taken": {one(), []placed{{"n1", makePod("a", requests("cpu", "1"))}},
			makePod("p", requests("cpu", "1")), "0/1 nodes are available: 1 Insufficient cpu." + noVictims},
		"cpu and memory": {one(), nil, makePod("p", requests("cpu", "2"), requests("memory", "2Gi")),
			"0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory." + notHelpful},
		"extended": {one(), nil, makePod("p", requests("example.com/gpu", "1")),
			"0/1 nodes are available: 1 Insufficient example.com/gpu." + notHelpful},
		"ephemeral storage": {one(), nil, makePod("p", requests("ephemeral-storage", "1Gi")),
			"0/1 nodes are available: 1 Insufficient ephemeral-storage." + notHelpful},
		"too many pods": {one(allocatable("pods", "1")), []placed{{"n1", makePod("a")}}, makePod("p"),
			"0/1 nodes are available: 1 Too many pods." + noVictims},
		"selector": {one(), nil, makePod("p", selects("disk", "ssd")),
			"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector." + notHelpful},
		"taint": {one(taint("k", corev1.TaintEffectNoSchedule)), nil, makePod("p"),
			"0/1 nodes are available: 1 node(s) had untolerated taint(s)." + notHelpful},
		"cordoned": {one(cordoned), nil, makePod("p"),
			"0/1 nodes are available: 1 node(s) were unschedulable." + notHelpful},
		"other node's name": {one(), nil, makePod("p", func(p *corev1.Pod) { p.Spec.NodeName = "n9" }),
			"0/1 nodes are available: 1 node(s) didn't match the requested node name." + notHelpful},
		"port": {one(), []placed{{"n1", makePod("a", hostPort(80, ""))}},
			makePod("p", hostPort(80, "10.0.0.1")),
			"0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports." + noVictims},
		"affinity": {one(), nil, makePod("p", affine(false, corev1.LabelHostname, "db")),
			"0/1 nodes are available: 1 node(s) didn't match pod affinity rules." + notHelpful},
		"anti-affinity": {one(), []placed{{"n1", makePod("a", app("db"))}},
			makePod("p", affine(true, corev1.LabelHostname, "db")),
			"0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules." + noVictims},
		"others' affinity": {one(), []placed{{"n1", makePod("a", affine(true, corev1.LabelHostname, "p"))}},
			makePod("p"), "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules." +
				noVictims},
		"spread, no label": {one(), nil, makePod("p", spreads(zone, 1, "p")),
			"0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label)." + notHelpful},
		"preemption is never": {one(), nil,
			makePod("p", requests("cpu", "2"), func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never }),
			"0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."},
		"sorted and counted": {
			[]*corev1.Node{makeNode("n1", "1", "1Gi"), makeNode("n2", "1", "1Gi"),
				makeNode("n3", "1", "1Gi", cordoned)}, nil,
			makePod("p", requests("cpu", "2")),
			"0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
		},
		"spread": {
			[]*corev1.Node{makeNode("n1", "1", "1Gi", label(zone, "a")),
				makeNode("n2", "1", "1Gi", label(zone, "b"), allocatable("pods", "0"))},
			[]placed{{"n1", makePod("a", app("p"))}}, makePod("p", spreads(zone, 1, "p")),
			"0/2 nodes are available: 1 Too many pods, 1 node(s) didn't match pod topology spread constraints. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.",
		},
	} {
		c := clusterOf(test.nodes, test.on...)
		p := Prepare(test.pod)
		d := c.Decide(p, 0)
		if d.Node != "" {
			t.Errorf("%s: placed on %s", name, d.Node)
			continue
		}
		preemption := ""
		if d.Nodes > 0 {
			preemption = c.Preempt(p, d, nil).Message
		}
		if diff := cmp.Diff(test.want, d.Message(preemption)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestChoice(t *testing.T) { // L2.10
	zone := corev1.LabelTopologyZone
	two := []*corev1.Node{makeNode("n1", "4", "4Gi", label(zone, "a")), makeNode("n2", "4", "4Gi", label(zone, "b"))}
	prefer := func(key, value string) podOption {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
					Weight: 10, Preference: corev1.NodeSelectorTerm{
						MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn,
							Values: []string{value}}}},
				}}}}
		}
	}
	near := func(weight int32, appValue string, anti bool) podOption {
		return func(p *corev1.Pod) {
			terms := []corev1.WeightedPodAffinityTerm{{Weight: weight,
				PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: zone,
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": appValue}}}}}
			if anti {
				p.Spec.Affinity = &corev1.Affinity{
					PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}}
			} else {
				p.Spec.Affinity = &corev1.Affinity{
					PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}}
			}
		}
	}
	softly := func(appValue string) podOption {
		return func(p *corev1.Pod) {
			spreads(zone, 1, appValue)(p)
			p.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway
		}
	}
	image := func(n *corev1.Node) {
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"i:latest"}, SizeBytes: 900 << 20}}
	}
	for name, test := range map[string]struct {
		nodes []*corev1.Node
		on    []placed
		pod   *corev1.Pod
		want  string
	}{
		"the emptier": {two, []placed{{"n1", makePod("a", requests("cpu", "2"), requests("memory", "2Gi"))}},
			makePod("p", requests("cpu", "1"), requests("memory", "1Gi")), "n2"},
		"silent pods count": {two, []placed{{"n2", makePod("a")}, {"n2", makePod("b")}}, makePod("p"), "n1"},
		"without the taint": {[]*corev1.Node{makeNode("n1", "4", "4Gi",
			taint("k", corev1.TaintEffectPreferNoSchedule)), makeNode("n2", "4", "4Gi")}, nil, makePod("p"), "n2"},
		"preferred zone": {two, nil, makePod("p", prefer(zone, "b")), "n2"},
		"with the image": {[]*corev1.Node{makeNode("n1", "4", "4Gi"), makeNode("n2", "4", "4Gi", image)}, nil,
			makePod("p"), "n2"},
		"near its friend": {two, []placed{{"n2", makePod("a", app("db"))}}, makePod("p", near(50, "db", false)),
			"n2"},
		"far from its enemy": {two, []placed{{"n1", makePod("a", app("db"))}},
			makePod("p", requests("cpu", "10m"), near(50, "db", true)), "n2"},
		"where fewer are":   {two, []placed{{"n1", makePod("a", app("p"))}}, makePod("p", softly("p")), "n2"},
		"first of its kind": {two[:1], nil, makePod("p", affine(false, zone, "p")), "n1"},
		"beside its kind": {two, []placed{{"n2", makePod("a", app("p"))}}, makePod("p", affine(false, zone, "p")),
			"n2"},
		"spread": {two, []placed{{"n1", makePod("a", app("p"))}}, makePod("p", spreads(zone, 1, "p")),
			"n2"},
		"tolerated": {[]*corev1.Node{makeNode("n1", "4", "4Gi", taint("k", corev1.TaintEffectNoSchedule))},
			nil, makePod("p", tolerates("k", "")), "n1"},
		"tolerated cordon": {[]*corev1.Node{makeNode("n1", "4", "4Gi", cordoned)}, nil,
			makePod("p", tolerates(corev1.TaintNodeUnschedulable, "")), "n1"},
		"other address": {two[:1], []placed{{"n1", makePod("a", hostPort(80, "10.0.0.1"))}},
			makePod("p", hostPort(80, "10.0.0.2")), "n1"},
	} {
		if d := clusterOf(test.nodes, test.on...).Decide(Prepare(test.pod), 0); d.Node != test.want {
			t.Errorf("%s: on %q, want %q (%v)", name, d.Node, test.want, d.Message(""))
		}
	}
}

// Host ports conflict if both can get the same packet (N7.28); 0.0.0.0 conflicts with all, as upstream.
func TestHostPortConflicts(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"", "::1", true}, {"0.0.0.0", "::", true}, {"::", "::", true}, {"::", "fd00::1", true},
		{"::", "127.0.0.1", false}, {"::1", "127.0.0.1", false}, {"::ffff:127.0.0.1", "127.0.0.1", true},
		{"fd00:0:0::1", "fd00::1", true}, {"fd00::1", "fd00::2", false}, {"::ffff:0.0.0.0", "192.0.2.1", true},
	} {
		for _, ips := range [][2]string{{test.a, test.b}, {test.b, test.a}} {
			c := clusterOf([]*corev1.Node{makeNode("n1", "4", "4Gi")}, placed{"n1", makePod("a", hostPort(80, ips[0]))})
			d := c.Decide(Prepare(makePod("p", hostPort(80, ips[1]))), 0)
			if got := d.Node == ""; got != test.want {
				t.Errorf("%q and %q: conflict %v, want %v", ips[0], ips[1], got, test.want)
			}
		}
	}
}

func TestPreempt(t *testing.T) { // L2.50, L2.51
	budget := func(appValue string, allowed int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: appValue},
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": appValue}}},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
		}
	}
	nodes := []*corev1.Node{makeNode("n1", "2", "4Gi"), makeNode("n2", "2", "4Gi")}
	incoming := makePod("p", requests("cpu", "1"), priority(100))
	pod := func(name, cpu string, prio int32, options ...podOption) *corev1.Pod {
		return makePod(name, append(options, requests("cpu", cpu), priority(prio))...)
	}
	for name, test := range map[string]struct {
		on      []placed
		budgets []*policyv1.PodDisruptionBudget
		node    string
		victims []string
		message string
	}{
		"as few as possible": {
			[]placed{{"n1", pod("a", "1", 1)}, {"n1", pod("b", "1", 2)}, {"n2", pod("c", "2", 50)}}, nil, "n1",
			[]string{"a"}, "",
		},
		"lowest of the highest priorities": {
			[]placed{{"n1", pod("a", "2", 9)}, {"n2", pod("b", "2", 3)}}, nil, "n2", []string{"b"}, "",
		},
		"fewest victims": {
			[]placed{{"n1", pod("a", "500m", 3)}, {"n1", pod("b", "500m", 3)}, {"n1", pod("x", "1", 100)},
				{"n2", pod("c", "2", 3)}}, nil, "n2", []string{"c"}, "",
		},
		"youngest victim": {
			[]placed{{"n1", pod("a", "2", 3, startedAt(100))}, {"n2", pod("b", "2", 3, startedAt(200))}}, nil, "n2",
			[]string{"b"}, "",
		},
		"budget goes first": {
			[]placed{{"n1", pod("a", "2", 3, app("kept"))}, {"n2", pod("b", "2", 9)}},
			[]*policyv1.PodDisruptionBudget{budget("kept", 0)}, "n2", []string{"b"}, "",
		},
		"budget with room": {
			[]placed{{"n1", pod("a", "2", 3, app("kept"))}, {"n2", pod("b", "2", 9)}},
			[]*policyv1.PodDisruptionBudget{budget("kept", 1)}, "n1", []string{"a"}, "",
		},
		"nobody is less important": {
			[]placed{{"n1", pod("a", "2", 100)}, {"n2", pod("b", "2", 200)}}, nil, "", nil,
			"0/2 nodes are available: 2 No preemption victims found for incoming pod.",
		},
		"removing all is not enough": {
			[]placed{{"n1", pod("a", "1500m", 100)}, {"n1", pod("b", "500m", 1)}, {"n2", pod("c", "2", 100)}}, nil, "",
			nil,
			"0/2 nodes are available: 1 Insufficient cpu, 1 No preemption victims found for incoming pod.",
		},
	} {
		c := clusterOf(nodes, test.on...)
		p := Prepare(incoming)
		d := c.Decide(p, 0)
		if d.Node != "" {
			t.Errorf("%s: fits", name)
			continue
		}
		got := c.Preempt(p, d, test.budgets)
		var victims []string
		for _, v := range got.Victims {
			victims = append(victims, v.Object.Name)
		}
		if got.Node != test.node || !cmp.Equal(victims, test.victims) || got.Message != test.message {
			t.Errorf("%s: %q %v %q, want %q %v %q", name, got.Node, victims, got.Message, test.node, test.victims,
				test.message)
		}
		if again := c.Decide(p, 0); !cmp.Equal(again.Refusals, d.Refusals) {
			t.Errorf("%s: looking for victims changed the cluster", name)
		}
	}
}

// L2.51: while all nodes that were looked at violate a disruption budget, the search goes on, however many there are.
func TestPreemptionLooksForNodesWithoutViolation(t *testing.T) {
	f := DefaultProfile()
	f.MinCandidates, f.MinCandidatesPercentage = 1, 0
	c := clusterOf([]*corev1.Node{makeNode("n1", "1", "1Gi"), makeNode("n2", "1", "1Gi"), makeNode("n3", "1", "1Gi")},
		placed{"n1", makePod("a", app("guarded"), requests("cpu", "1"))},
		placed{"n2", makePod("b", app("guarded"), requests("cpu", "1"))},
		placed{"n3", makePod("c", requests("cpu", "1"))})
	budgets := []*policyv1.PodDisruptionBudget{{ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}}}}
	p := PrepareFor(makePod("p", requests("cpu", "1"), priority(9)), f)
	if got := c.Preempt(p, c.Decide(p, 0), budgets); got.Node != "n3" {
		t.Errorf("it preempts on %q: %+v", got.Node, got)
	}
}

func TestPreemptionWaitsForVictims(t *testing.T) { // L2.40
	victim := makePod("a", requests("cpu", "1"), priority(1))
	now := metav1.NewTime(time.Unix(1, 0))
	victim.DeletionTimestamp = &now
	victim.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonPreemptionByScheduler}}
	c := clusterOf([]*corev1.Node{makeNode("n1", "1", "1Gi")}, placed{"n1", victim})
	pod := makePod("p", requests("cpu", "1"), priority(9))
	pod.Status.NominatedNodeName = "n1"
	p := Prepare(pod)
	want := "not eligible due to a terminating pod on the nominated node."
	if got := c.Preempt(p, c.Decide(p, 0), nil).Message; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAdmit(t *testing.T) { // L3.20–L3.27, L3.37, L3.39
	node := makeNode("n1", "1", "1Gi", allocatable("example.com/gpu", "1"), taint("gone", corev1.TaintEffectNoExecute),
		taint("full", corev1.TaintEffectNoSchedule))
	others := []*corev1.Pod{makePod("a", requests("cpu", "600m"), hostPort(80, ""), requests("example.com/gpu", "1"))}
	ok := tolerates("gone", "")
	strict := corev1.SupplementalGroupsPolicyStrict
	for name, test := range map[string]struct {
		pod             *corev1.Pod
		reason, message string
	}{
		"fits; NoSchedule is not asked": {makePod("p", ok, requests("cpu", "400m")), "", ""},
		"cpu": {makePod("p", ok, requests("cpu", "500m")), "OutOfcpu",
			"Node didn't have enough resource: cpu, requested: 500, used: 600, capacity: 1000"},
		"known extended": {makePod("p", ok, requests("example.com/gpu", "1")), "OutOfexample.com/gpu",
			"Node didn't have enough resource: example.com/gpu, requested: 1, used: 1, capacity: 1"},
		"unknown extended": {makePod("p", ok, requests("example.com/tpu", "1")), "", ""},
		"affinity": {makePod("p", ok, selects("disk", "ssd")), "NodeAffinity",
			"Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		"name": {makePod("p", ok, func(p *corev1.Pod) { p.Spec.NodeName = "n2" }), "NodeName",
			"Predicate NodeName failed: node(s) didn't match the requested node name"},
		"ports": {makePod("p", ok, hostPort(80, "")), "NodePorts",
			"Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		"taint": {makePod("p"), "TaintToleration",
			"Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"},
		"taint, static pod": {makePod("p",
			func(p *corev1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }), "", ""},
		"resources come first": {makePod("p", requests("cpu", "2"), selects("disk", "ssd"), hostPort(80, "")),
			"OutOfcpu", "Node didn't have enough resource: cpu, requested: 2000, used: 600, capacity: 1000"},
		"os label": {makePod("p",
			func(p *corev1.Pod) { p.Labels[corev1.LabelOSStable] = "windows" }), "PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"},
		"os field": {makePod("p",
			func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }), "PodOSNotSupported",
			"Failed to admit pod as the OS field doesn't match node OS"},
		"strict groups": {
			makePod("p", func(p *corev1.Pod) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
			}),
			"SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node",
		},
	} {
		got := nodeWith(node, others).Admit(Prepare(test.pod), "linux")
		if got == nil {
			got = &Rejection{}
		}
		if got.Reason != test.reason || got.Message != test.message {
			t.Errorf("%s: %s %q, want %s %q", name, got.Reason, got.Message, test.reason, test.message)
		}
	}
	full := makeNode("n1", "1", "1Gi", allocatable("pods", "1"))
	want := "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1"
	if got := nodeWith(full, []*corev1.Pod{makePod("a")}).Admit(Prepare(makePod("p")), "linux"); got == nil ||
		got.Reason != "OutOfpods" || got.Message != want {
		t.Errorf("full node: %v", got)
	}
}

func TestSampleSize(t *testing.T) { // L2.11
	for nodes, want := range map[int]int{1: 1, 99: 99, 100: 100, 500: 230, 1000: 420, 10000: 500} {
		if got := DefaultProfile().sampleSize(nodes); got != want {
			t.Errorf("%d nodes: %d, want %d", nodes, got, want)
		}
	}
}

// nodeWith returns a node that counts pods.
func nodeWith(object *corev1.Node, pods []*corev1.Pod) *Node {
	n := &Node{}
	n.Set(object)
	for _, pod := range pods {
		n.Add(Prepare(pod))
	}
	return n
}
