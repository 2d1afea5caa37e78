package explain

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The line about a pod without a node has what the scheduler's message is about, and what helps.
func TestUnscheduled(t *testing.T) {
	amount := func(name corev1.ResourceName, of string) corev1.ResourceList {
		return corev1.ResourceList{name: resource.MustParse(of)}
	}
	node := func(change func(*corev1.Node)) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("2"), "pods": resource.MustParse("110"),
			"memory": resource.MustParse("24598540Ki")}
		change(&n)
		return n
	}
	plain := node(func(*corev1.Node) {})
	cordoned := node(func(n *corev1.Node) { n.Spec.Unschedulable = true })
	tainted := node(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "a", Value: "b", Effect: "NoSchedule"},
			{Key: "c", Effect: "PreferNoSchedule"}}
	})
	other := func(phase corev1.PodPhase) corev1.Pod {
		c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: amount("memory", "1Gi")}}
		return corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{c}},
			Status: corev1.PodStatus{Phase: phase}}
	}
	victim := other("Running")
	victim.Namespace, victim.Name, victim.DeletionTimestamp = "ns", "victim", &metav1.Time{}
	victim.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonPreemptionByScheduler}}
	rules := func(p *corev1.Pod) {
		with := func(app string) *metav1.LabelSelector {
			return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		}
		p.Spec.Affinity = &corev1.Affinity{
			PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{LabelSelector: with("db"), TopologyKey: "zone"}}},
			PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
					{LabelSelector: with("web"), TopologyKey: "kubernetes.io/hostname"}}}}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
			{TopologyKey: "zone", MaxSkew: 1, MinDomains: new(int32(3)), LabelSelector: with("web"),
				WhenUnsatisfiable: corev1.DoNotSchedule},
			{TopologyKey: "rack", MaxSkew: 2, LabelSelector: with("web"), WhenUnsatisfiable: corev1.DoNotSchedule},
			{TopologyKey: "row", MaxSkew: 1, WhenUnsatisfiable: corev1.ScheduleAnyway}}
	}
	for _, c := range []struct {
		what, reasons string
		change        func(*corev1.Pod)
		room          Room
		want          string
	}{
		{"too much memory", "1 Insufficient memory", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = amount("memory", "1Ti")
		}, Room{Nodes: []corev1.Node{plain}, Pods: []corev1.Pod{other("Running"), other("Succeeded")}},
			"; it requests memory 1Ti, and node n has 22.5Gi of 23.5Gi left"},
		{"pods that may not be read", "1 Insufficient memory", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = amount("memory", "1536Mi")
		}, Room{Nodes: []corev1.Node{plain}}, "; it requests memory 1.5Gi, and node n has 23.5Gi"},
		{"nodes that may not be read", "1 Insufficient cpu", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = amount("cpu", "2500m")
		}, Room{}, "; it requests cpu 2500m"},
		{"the emptiest of two nodes", "2 Insufficient cpu", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = amount("cpu", "5")
		}, Room{Nodes: []corev1.Node{plain, node(func(n *corev1.Node) {
			n.Name, n.Status.Allocatable = "big", amount("cpu", "4")
		})}, Pods: []corev1.Pod{other("Running")}}, "; it requests cpu 5, and node big has 4 of 4 left"},
		{"a device that no node has", "1 Insufficient example.com/gpu", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = amount("example.com/gpu", "1")
		}, Room{Nodes: []corev1.Node{plain}}, "; it requests example.com/gpu 1, and node n has 0"},
		{"pods", "1 Too many pods", func(*corev1.Pod) {}, Room{Nodes: []corev1.Node{plain}},
			"; node n runs at most 110 pods (--max-pods)"},
		{"selector", "1 node(s) didn't match Pod's node affinity/selector", func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"disk": "ssd", "a": "b"}
		}, Room{}, "; its nodeSelector is a=b,disk=ssd: `kubectl label node NODE a=b disk=ssd` labels a node"},
		{"affinity", "1 node(s) didn't match Pod's node affinity/selector", func(*corev1.Pod) {}, Room{}, ""},
		{"the emptiest of the nodes that it selects", "1 Insufficient cpu", func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
			p.Spec.Containers[0].Resources.Requests = amount("cpu", "3")
		}, Room{Nodes: []corev1.Node{plain, node(func(n *corev1.Node) {
			n.Name, n.Labels, n.Status.Allocatable = "ssd", map[string]string{"disk": "ssd"}, amount("cpu", "1")
		})}, Pods: []corev1.Pod{other("Running")}}, "; it requests cpu 3, and node ssd has 1 of 1 left"},
		{"rules about other pods", "1 node(s) didn't match pod affinity rules, 1 node(s) didn't match pod " +
			"anti-affinity rules, 1 node(s) didn't match pod topology spread constraints", rules, Room{},
			"; its podAffinity requires pods with app=db in its zone" +
				"; its podAntiAffinity forbids pods with app=web in its kubernetes.io/hostname" +
				"; its topology spread over zone has maxSkew 1 and minDomains 3 for pods with app=web" +
				"; its topology spread over rack has maxSkew 2 for pods with app=web"},
		{"rules that do not matter", "1 node(s) were unschedulable", rules, Room{}, ""},
		{"host port", "1 node(s) didn't have free ports for the requested pod ports", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}, {ContainerPort: 81}}
		}, Room{}, "; it needs host port 80, which another pod uses"},
		{"victims that have not ended", "1 node(s) did not satisfy", func(p *corev1.Pod) {
			p.Status.NominatedNodeName = "n"
		}, Room{Pods: []corev1.Pod{other("Running"), victim}},
			"; it waits for pods on node n that it preempted and that have not ended: ns/victim"},
		{"taint", "1 node(s) had untolerated taint(s)", func(*corev1.Pod) {}, Room{Nodes: []corev1.Node{tainted}},
			"; node n has the taint a=b:NoSchedule"},
		{"cordoned", "1 node(s) were unschedulable", func(*corev1.Pod) {}, Room{Nodes: []corev1.Node{cordoned}},
			"; node n is cordoned: `kubectl uncordon n` lets pods on it again"},
	} {
		p := pod(func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Spec.Containers = []corev1.Container{{Name: "c"}}
			p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: "PodScheduled", Status: "False", Reason: "Unschedulable",
				Message: "0/1 nodes are available: " + c.reasons + "."}}}
			c.change(p)
		})
		expectLines(t, c.what, Pod(p, Beside{Room: c.room}, now),
			"! is not scheduled: 0/1 nodes are available: "+c.reasons+". (Unschedulable)"+c.want+"\n")
		if nodes, pods := NeedsRoom(p); len(c.room.Nodes) > 0 && !nodes || len(c.room.Pods) > 0 && !pods {
			t.Errorf("%s: reads nodes: %v, pods: %v", c.what, nodes, pods)
		}
	}
}
