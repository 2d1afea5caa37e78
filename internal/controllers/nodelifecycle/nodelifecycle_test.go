package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/source"
	"carob/internal/core/nodehealth"
)

func node(name string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.Now()},
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse},
			{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse},
		}}}
}

func readyPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
			Status: corev1.ConditionTrue}}},
	}
}

type world struct {
	*testing.T
	*fake.Clientset
	events     *record.FakeRecorder
	controller *Controller
}

func inWorld(t *testing.T, objects []runtime.Object, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, Clientset: fake.NewClientset(objects...), events: record.NewFakeRecorder(100)}
		nodes, leases, pods := source.Nodes(w), source.Leases(w), source.Pods(w)
		c, err := New(w, w.events, nodes, leases, pods)
		if err != nil {
			t.Fatal(err)
		}
		w.controller = c
		controllertest.Run(t, c, nodes, leases, pods)
		controllertest.Events(w.events) // RegisteredNode
		test(w)
	})
}

func (w *world) node(name string) *corev1.Node {
	w.Helper()
	synctest.Wait()
	n, err := w.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return n
}

// state formats the status of the node's Ready condition and its taints.
func (w *world) state(name string) []string {
	w.Helper()
	n := w.node(name)
	out := []string{string(n.Status.Conditions[0].Status)}
	for i := range n.Spec.Taints {
		out = append(out, n.Spec.Taints[i].ToString())
	}
	return out
}

func (w *world) renewLease(node string) {
	w.Helper()
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
		Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
	api := w.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err := api.Update(context.Background(), lease, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(context.Background(), lease, metav1.CreateOptions{})
	}
	if err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

func unreachable() []string {
	return []string{"Unknown", "node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"}
}

// A lease that is renewed just before the grace period ends prevents a verdict; one that is renewed
// after it does not undo the verdict, because only the node's own status sets it to ready.
func TestGracePeriod(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", corev1.ConditionTrue), node("n2", corev1.ConditionTrue)}, func(w *world) {
		for range 3 {
			time.Sleep(nodehealth.Grace - 1)
			w.renewLease("n1")
			w.renewLease("n2")
		}
		controllertest.Equal(t, "renewed in time", w.state("n1"), "True")
		time.Sleep(nodehealth.Grace - 1)
		w.renewLease("n2")
		controllertest.Equal(t, "before the end", w.state("n1"), "True")
		time.Sleep(time.Nanosecond)
		controllertest.Equal(t, "at the end", w.state("n1"), unreachable()...)
		controllertest.Equal(t, "the other node", w.state("n2"), "True")
		w.renewLease("n1")
		controllertest.Equal(t, "renewed too late", w.state("n1"), unreachable()...)

		n := w.node("n1")
		n.Status.Conditions[0].Status, n.Status.Conditions[0].LastHeartbeatTime = corev1.ConditionTrue, metav1.Now()
		if _, err := w.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Equal(t, "ready again", w.state("n1"), "True")
	})
}

// NoExecute taints are withheld while no node is ready, and set when another node becomes ready.
func TestNoNodeIsReady(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", corev1.ConditionFalse)}, func(w *world) {
		controllertest.Equal(t, "the only node", w.state("n1"), "False", "node.kubernetes.io/not-ready:NoSchedule")
		if _, err := w.CoreV1().Nodes().Create(t.Context(), node("n2", corev1.ConditionTrue),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		controllertest.Equal(t, "just after", w.state("n1"), "False", "node.kubernetes.io/not-ready:NoSchedule")
		time.Sleep(10 * time.Second)
		controllertest.Equal(t, "beside a ready node", w.state("n1"), "False",
			"node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute")
		if _, err := w.CoreV1().Nodes().UpdateStatus(t.Context(), node("n2", corev1.ConditionFalse),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Equal(t, "none is ready again", w.state("n1"), "False", "node.kubernetes.io/not-ready:NoSchedule")
	})
}

// Nodes that go down together are evicted one every ten seconds; if one becomes ready in between, the
// next one follows (L7.164).
func TestEvictionRate(t *testing.T) {
	var all []runtime.Object
	for i := range 6 {
		all = append(all, node(fmt.Sprint("n", i), corev1.ConditionTrue))
	}
	metrics.Register()
	counted := controllertest.Metrics(t)
	defer func() {
		controllertest.Grown(t, counted, map[string]float64{"node_collector_evictions_total{}": 4})
	}()
	inWorld(t, all, func(w *world) {
		set := func(name string, ready corev1.ConditionStatus) {
			n := w.node(name)
			n.Status.Conditions[0].Status = ready
			if _, err := w.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		evicting := func() (out []string) {
			for i := range 6 {
				if name := fmt.Sprint("n", i); slices.Contains(w.state(name), "node.kubernetes.io/not-ready:NoExecute") {
					out = append(out, name)
				}
			}
			return out
		}
		controllertest.FailOnce(w.Clientset, "patch", "nodes", errors.New("no connection")) // the first taint of n1
		for _, name := range []string{"n1", "n2", "n3"} {
			set(name, corev1.ConditionFalse)
			synctest.Wait()
		}
		time.Sleep(time.Second)
		controllertest.Equal(t, "the first", evicting(), "n1")
		time.Sleep(9 * time.Second)
		controllertest.Equal(t, "after ten seconds", evicting(), "n1", "n2")
		set("n1", corev1.ConditionTrue)
		time.Sleep(10 * time.Second)
		controllertest.Equal(t, "after twenty", evicting(), "n2", "n3")
		set("n4", corev1.ConditionFalse)
		set("n5", corev1.ConditionFalse)
		time.Sleep(15 * time.Second)
		controllertest.Equal(t, "four of six are down: it stops", evicting(), "n2", "n3")
		set("n2", corev1.ConditionTrue)
		time.Sleep(time.Second)
		controllertest.Equal(t, "three of six: it goes on with a wait", evicting(), "n3")
		time.Sleep(9 * time.Second)
		controllertest.Equal(t, "n4 is next", evicting(), "n3", "n4")
		now := controllertest.Metrics(t)
		size, unhealthy := now["node_collector_zone_size{}"], now["node_collector_unhealthy_nodes_in_zone{}"]
		if size != 6 || unhealthy != 3 || now["node_collector_zone_health{}"] != 50 {
			t.Errorf("%v nodes, %v of them not ready", size, unhealthy)
		}
	})
}

// A write that conflicts with another one is repeated when the watch reports the newer node, not before.
func TestConflict(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", corev1.ConditionTrue), node("n2", corev1.ConditionTrue)}, func(w *world) {
		conflict := apierrors.NewConflict(corev1.Resource("nodes"), "n1", errors.New("a webhook says so"))
		controllertest.FailOnce(w.Clientset, "patch", "nodes", conflict)
		controllertest.Writes(w.Clientset)
		cordoned := node("n1", corev1.ConditionTrue)
		cordoned.Spec.Unschedulable = true
		if _, err := w.CoreV1().Nodes().Update(t.Context(), cordoned, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(nodehealth.Grace / 2)
		controllertest.Equal(t, "after the conflict", controllertest.Writes(w.Clientset), "update nodes", "patch nodes",
			"patch nodes")
		controllertest.Equal(t, "after the conflict", w.state("n1"), "True",
			"node.kubernetes.io/unschedulable:NoSchedule")
	})
}

// Pods of a node that is not ready become not ready, those of other nodes do not (L7.161). If a
// pod's status cannot be written, the others are retried, and each event is recorded once.
func TestPodsOfUnreadyNode(t *testing.T) {
	for _, fails := range []error{nil, errors.New("no connection"),
		apierrors.NewNotFound(corev1.Resource("pods"), "of a webhook")} {
		inWorld(t, []runtime.Object{
			node("n1", corev1.ConditionTrue), node("n2", corev1.ConditionTrue), readyPod("a", "n1"),
			readyPod("b", "n1"), readyPod("c", "n2"),
		}, func(w *world) {
			if fails != nil {
				controllertest.FailOnce(w.Clientset, "update", "pods/status", fails)
			}
			if _, err := w.CoreV1().Nodes().UpdateStatus(t.Context(), node("n1", corev1.ConditionFalse),
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			var got []string
			for _, name := range []string{"a", "b", "c"} {
				p, err := w.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, name+" "+string(p.Status.Conditions[0].Status))
			}
			controllertest.Equal(t, fmt.Sprintf("fails: %v", fails), got, "a False", "b False", "c True")
			events := controllertest.Events(w.events)
			slices.Sort(events)
			controllertest.Equal(t, fmt.Sprintf("events, fails: %v", fails), events,
				"Normal NodeNotReady Node n1 status is now: NodeNotReady", "Warning NodeNotReady Node is not ready",
				"Warning NodeNotReady Node is not ready")
		})
	}
}

// Leases without a node, and those of deleted nodes, leave nothing behind.
func TestLeasesWithoutNodes(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", corev1.ConditionTrue), node("n2", corev1.ConditionTrue)}, func(w *world) {
		for _, name := range []string{"n1", "n2", "x", "y"} {
			w.renewLease(name)
		}
		if err := w.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := w.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(t.Context(), "n1",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.controller.mu.Lock()
		defer w.controller.mu.Unlock()
		controllertest.Equal(t, "nodes with a time", slices.Collect(maps.Keys(w.controller.seen)), "n2")
	})
}
