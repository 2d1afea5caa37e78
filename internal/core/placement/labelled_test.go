package placement

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestSelected: with random pods that are added, relabelled, and removed, a selector finds exactly those that it
// matches among the candidates.
func TestSelected(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCluster()
		keys, values := rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"", "x", "y"})
		some := rapid.MapOfN(keys, values, 0, 3)
		namespaces := rapid.SampledFrom([]string{"one", "two"})
		for range rapid.IntRange(0, 40).Draw(t, "changes") {
			uid := types.UID(rapid.StringMatching("[0-9]").Draw(t, "pod"))
			if rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				c.RemovePod(uid)
				continue
			}
			c.SetPod(Prepare(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: string(uid),
				Namespace: namespaces.Draw(t, "namespace"), Labels: some.Draw(t, "labels")}}), "node")
		}
		for range 5 {
			text := rapid.SampledFrom([]string{"", "a=x", "a=x,b=y", "a in (x,y),c=", "a!=x", "b,c=x", "!a", "a=none",
				"a=x,a=y"}).Draw(t, "selector")
			selector, err := labels.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			if text == "" && rapid.Bool().Draw(t, "nothing") {
				selector = labels.Nothing()
			}
			namespace := namespaces.Draw(t, "in")
			found := map[types.UID]bool{}
			for _, p := range c.selected(namespace, selector) {
				if p.Object.Namespace != namespace || c.pods[p.Object.UID] != p || found[p.Object.UID] {
					t.Fatalf("pod %s of %s is a candidate", p.Object.UID, p.Object.Namespace)
				}
				found[p.Object.UID] = true
			}
			for uid, p := range c.pods {
				if p.Object.Namespace == namespace && selector.Matches(labels.Set(p.Object.Labels)) && !found[uid] {
					t.Fatalf("%q leaves %s out, which has %v", text, uid, p.Object.Labels)
				}
			}
		}
		for uid := range c.pods {
			c.RemovePod(uid)
		}
		if len(c.labelled) != 0 {
			t.Fatalf("labels without pods: %v", c.labelled)
		}
	})
}

// counting counts the pods that it is called for.
type counting struct {
	labels.Selector
	requests *int
}

func (s counting) Matches(l labels.Labels) bool {
	*s.requests++
	return s.Selector.Matches(l)
}

// TestCostOfManyOwners: what the first pod of a Deployment costs does not grow with the other Deployments of its
// namespace: neither default spreading nor affinity checks their pods.
func TestCostOfManyOwners(t *testing.T) {
	for _, deployments := range []int{10, 500} {
		c := NewCluster()
		c.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node",
			Labels: map[string]string{"kubernetes.io/hostname": "node"}}})
		pod := func(deployment, replica int) *Pod {
			name := fmt.Sprintf("d-%d", deployment)
			selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
			term := corev1.PodAffinityTerm{LabelSelector: selector, TopologyKey: "kubernetes.io/hostname"}
			preferred := []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}}
			return Prepare(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bench",
				Name: fmt.Sprint(name, replica), UID: types.UID(fmt.Sprint(name, replica)),
				Labels: map[string]string{"app": name, "all": "yes"}},
				Spec: corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1,
					TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.ScheduleAnyway,
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name, "all": "yes"}}}},
					Affinity: &corev1.Affinity{
						PodAffinity: &corev1.PodAffinity{
							RequiredDuringSchedulingIgnoredDuringExecution:  []corev1.PodAffinityTerm{term},
							PreferredDuringSchedulingIgnoredDuringExecution: preferred},
						PodAntiAffinity: &corev1.PodAntiAffinity{
							PreferredDuringSchedulingIgnoredDuringExecution: preferred}}}})
		}
		for d := range deployments {
			for r := range 5 {
				c.SetPod(pod(d, r), "node")
			}
		}
		matches := 0
		p := pod(0, 9)
		for _, terms := range [][]podTerm{p.affinity, p.antiAffinity, p.attractions} {
			for i := range terms {
				terms[i].selector = counting{terms[i].selector, &matches}
			}
		}
		for i := range p.softSpread {
			p.softSpread[i].selector = counting{p.softSpread[i].selector, &matches}
		}
		c.affinityState(p)
		c.attraction(p)
		c.spreadState(p, false)
		// Three terms and one constraint look at five pods each; a term and the constraint also at the pod itself.
		if matches != 22 {
			t.Errorf("with %d Deployments, %d pods are looked at", deployments, matches)
		}
	}
}
