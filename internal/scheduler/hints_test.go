package scheduler

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

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
