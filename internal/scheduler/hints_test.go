package scheduler

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"carob/internal/core/placement"
)

// setNode updates a node, or creates it.
func (w *world) setNode(n *corev1.Node) {
	w.Helper()
	nodes := w.client.CoreV1().Nodes()
	_, err := nodes.Get(w.Context(), n.Name, metav1.GetOptions{})
	if err == nil {
		_, err = nodes.Update(w.Context(), n, metav1.UpdateOptions{})
	} else {
		_, err = nodes.Create(w.Context(), n, metav1.CreateOptions{})
	}
	if err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

func tainted(n *corev1.Node, key string) *corev1.Node {
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	return n
}

func cordoned(n *corev1.Node) *corev1.Node {
	n.Spec.Unschedulable = true
	return n
}

// TestObstaclesEndOneByOne: several filters refuse a node, and the changes that end this come one after the other. A
// pod is scheduled at the last one, without the wait of five minutes (L2.5).
func TestObstaclesEndOneByOne(t *testing.T) {
	const unschedulable, notReady = corev1.TaintNodeUnschedulable, corev1.TaintNodeNotReady
	for name, test := range map[string]struct {
		before []runtime.Object
		steps  []func(*world)
		on     string
	}{
		"uncordon: the controller removes the taint later": {
			[]runtime.Object{tainted(cordoned(node("n1", "4")), unschedulable)},
			[]func(*world){
				func(w *world) { w.setNode(tainted(node("n1", "4"), unschedulable)) },
				func(w *world) { w.setNode(node("n1", "4")) },
			}, "n1",
		},
		"a new node is not ready yet": {
			[]runtime.Object{node("n1", "1")},
			[]func(*world){
				func(w *world) { w.setNode(tainted(node("n2", "4"), notReady)) },
				func(w *world) { w.setNode(node("n2", "4")) },
			}, "n2",
		},
		"a node without its taint is full": {
			[]runtime.Object{tainted(node("n1", "4"), "a"), onNode(pod("other", "4"), "n1")},
			[]func(*world){
				func(w *world) { w.setNode(node("n1", "4")) },
				func(w *world) { w.delete("other") },
			}, "n1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, test.before, func(w *world) {
				w.create(pod("a", "2"))
				for _, step := range test.steps {
					w.on("a", "")
					step(w)
				}
				w.on("a", test.on)
			})
		})
	}
}

func onNode(p *corev1.Pod, node string) *corev1.Pod {
	p.Spec.NodeName = node
	return p
}

// TestFiltersSinceWatch: a filter that refused a pod at an event during the search for a preemption counts once the
// pod is parked.
func TestFiltersSinceWatch(t *testing.T) {
	now := time.Now()
	q := newQueue(time.Second, 10*time.Second)
	q.Add(placement.Prepare(pod("a", "1")), now)
	it := q.Pop()
	q.Watch(it, []placement.Filter{placement.NodeUnschedulable})
	q.Requeue(func(it *item) bool { it.refused = append(it.refused, placement.TaintToleration); return false }, now)
	q.Park(it, []placement.Filter{placement.NodeUnschedulable, placement.NodeResourcesFit}, now)
	for _, f := range []placement.Filter{placement.NodeUnschedulable, placement.TaintToleration,
		placement.NodeResourcesFit} {
		if !slices.Contains(it.refused, f) {
			t.Errorf("refused by %v, without %s", it.refused, f)
		}
	}
}

// A pod that the nomination of another one keeps from a node by its anti-affinity is tried again when that nomination
// gives way to a more important pod (L2.52, L2.55).
func TestNominationThatGivesWay(t *testing.T) {
	withPort := func(name string, priority int32) *corev1.Pod {
		p := withPriority(pod(name, "1"), priority)
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: "TCP"}}
		return p
	}
	low := onNode(withPort("low", 1), "n1")
	inWorld(t, []runtime.Object{node("n1", "4"), low}, func(w *world) {
		w.client.PrependReactor("delete", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
			obj, err := w.client.Tracker().Get(a.GetResource(), "default", "low")
			if err != nil || a.(ktesting.DeleteAction).GetName() != "low" {
				return false, nil, nil //nolint:nilerr // the tracker handles it
			}
			p := obj.(*corev1.Pod).DeepCopy()
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			return true, nil, w.client.Tracker().Update(a.GetResource(), p, "default")
		})
		middle := withPort("middle", 5)
		middle.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "small"}}}}}}
		w.create(middle)
		if got := w.pod("middle").Status.NominatedNodeName; got != "n1" {
			w.Fatalf("middle is nominated to %q", got)
		}
		small := withPriority(pod("small", "1"), 0)
		small.Labels = map[string]string{"app": "small"}
		w.create(small)
		w.on("small", "")
		w.create(withPort("high", 9))
		if got := w.pod("high").Status.NominatedNodeName; got != "n1" {
			w.Fatalf("high is nominated to %q", got)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.on("small", "n1")
	})
}
