package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"carob/internal/core/resources"
)

// TestFiltersOff: a filter that a profile disables refuses no node, the others still do.
func TestFiltersOff(t *testing.T) {
	zone := corev1.LabelTopologyZone
	n := func(options ...nodeOption) *corev1.Node { return makeNode("n1", "1", "1Gi", options...) }
	for filter, test := range map[Filter]struct {
		node *corev1.Node
		on   *corev1.Pod
		pod  *corev1.Pod
	}{
		NodeUnschedulable:    {n(cordoned), nil, makePod("p")},
		TaintToleration:      {n(taint("k", corev1.TaintEffectNoSchedule)), nil, makePod("p")},
		NodeAffinity:         {n(), nil, makePod("p", selects("a", "b"))},
		NodePorts:            {n(), makePod("a", hostPort(80, "")), makePod("p", hostPort(80, ""))},
		NodeResourcesFit:     {n(), nil, makePod("p", requests("cpu", "2"))},
		PodTopologySpread:    {n(), nil, makePod("p", spreads(zone, 1, "p"))},
		InterPodAffinity:     {n(label(zone, "z")), makePod("a"), makePod("p", affine(true, zone, "a"))},
		NodeDeclaredFeatures: {n(), nil, withRestartAll(makePod("p"))},
	} {
		t.Run(string(filter), func(t *testing.T) {
			c := clusterOf([]*corev1.Node{test.node})
			if test.on != nil {
				c.SetPod(Prepare(test.on), "n1")
			}
			if d := c.Decide(Prepare(test.pod), 0); d.Node != "" || d.Filters()[0] != filter {
				t.Errorf("with the filter: %+v", d)
			}
			off, other := DefaultProfile(), DefaultProfile()
			off.Name, other.Name = "off", "other"
			off.Off, other.Off = []Filter{filter}, []Filter{"Other"}
			if d := c.Decide(PrepareFor(test.pod, off), 0); d.Node == "" {
				t.Errorf("without the filter: %+v", d.Refusals)
			}
			if d := c.Decide(PrepareFor(test.pod, other), 0); d.Node != "" {
				t.Error("without another filter it fits")
			}
		})
	}
}

// TestProfileArguments: the effects of the arguments of plugins.
func TestProfileArguments(t *testing.T) {
	zone := corev1.LabelTopologyZone
	nodes := []*corev1.Node{makeNode("n1", "8", "8Gi", label(zone, "a"), allocatable("example.com/gpu", "1")),
		makeNode("n2", "4", "4Gi", label(zone, "b"), label("disk", "ssd"))}
	exists := func(key string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key,
			Operator: corev1.NodeSelectorOpExists}}}
	}
	prefers := func(weight int32, appValue string) podOption {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: weight,
					PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: zone,
						LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": appValue}}}}}}}
		}
	}
	for name, test := range map[string]struct {
		on     []placed
		pod    *corev1.Pod
		change func(f *Profile)
		before string // with the default profile
		after  string // with the changed one
	}{
		"most allocated": {nil, makePod("p", requests("cpu", "1"), requests("memory", "1Gi")),
			func(f *Profile) { f.Fit.Strategy = MostAllocated }, "n1", "n2"},
		"ratio": {nil, makePod("p", requests("cpu", "1"), requests("memory", "1Gi")), func(f *Profile) {
			f.Fit.Strategy, f.Fit.Shape = RequestedToCapacityRatio,
				[]resources.Point{{Utilization: 0, Score: 0}, {Utilization: 100, Score: 100}}
		}, "n1", "n2"},
		"ignored resource": {nil, makePod("p", requests("example.com/fpga", "1")),
			func(f *Profile) { f.Fit.Ignored = []corev1.ResourceName{"example.com/fpga"} }, "", "n1"},
		"ignored group": {nil, makePod("p", requests("example.com/fpga", "1")),
			func(f *Profile) { f.Fit.IgnoredGroups = []string{"example.com"} }, "", "n1"},
		"another group": {nil, makePod("p", requests("example.com/fpga", "1")),
			func(f *Profile) { f.Fit.IgnoredGroups = []string{"example.org"} }, "", ""},
		"added requirement": {nil, makePod("p", requests("cpu", "1")), func(f *Profile) {
			f.AddedRequired,
				_ = nodeaffinity.NewNodeSelector(
				&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{exists("disk")}})
		}, "n1", "n2"},
		"added preference": {nil, makePod("p", requests("cpu", "1")), func(f *Profile) {
			f.AddedPreferred,
				_ = nodeaffinity.NewPreferredSchedulingTerms(
				[]corev1.PreferredSchedulingTerm{{Weight: 1, Preference: exists("disk")}})
		}, "n1", "n2"},
		"hard affinity does not attract": {[]placed{{"n2", makePod("a", affine(false, zone, "p"))}}, makePod("p"),
			func(f *Profile) { f.HardPodAffinityWeight = 0 }, "n2", "n1"},
		"others' preferences do not attract": {[]placed{{"n2", makePod("a", prefers(100, "p"))}}, makePod("p"),
			func(f *Profile) { f.IgnoreOthersPreferences = true }, "n2", "n1"},
		"they do, for who has his own": {[]placed{{"n2", makePod("a", prefers(100, "p"))}},
			makePod("p", prefers(1, "x")), func(f *Profile) { f.IgnoreOthersPreferences = true }, "n2", "n2"},
		"hard default spread": {[]placed{{"n1", makePod("a", app("x"))}}, makePod("p", app("x"), selects(zone, "a")),
			func(f *Profile) {
				f.DefaultSpread = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "disk",
					WhenUnsatisfiable: corev1.DoNotSchedule}}
			}, "n1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(nodes, test.on...)
			c.SetOwner(Owner{Service, "default", "s"},
				&metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}})
			f := DefaultProfile()
			f.Name = "changed"
			test.change(f)
			if d := c.Decide(Prepare(test.pod), 0); d.Node != test.before {
				t.Errorf("by default %q, want %q", d.Node, test.before)
			}
			if d := c.Decide(PrepareFor(test.pod, f), 0); d.Node != test.after {
				t.Errorf("%q, want %q; %+v", d.Node, test.after, d.Refusals)
			}
		})
	}
}
