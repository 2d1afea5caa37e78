package podgc

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
)

func node(name string, ready corev1.ConditionStatus, taints ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	for _, key := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "nodeshutdown",
			Effect: corev1.TaintEffectNoExecute})
	}
	return n
}

func pod(name, node string, deleted bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if deleted {
		now := metav1.Now()
		p.DeletionTimestamp = &now
	}
	return p
}

// Only pods that are already being deleted, on a node that is both not ready and out of service, are
// removed at once: marked Failed first. Pod, taint and readiness may come in any order, and a write may
// fail.
func TestOutOfService(t *testing.T) { // L7.166 b
	synctest.Test(t, func(t *testing.T) {
		const taint = corev1.TaintNodeOutOfService
		api := controllertest.New(node("off", "Unknown", taint), node("silent", "Unknown"),
			node("ready", "True", taint), node("later", "False"),
			pod("a", "off", true), pod("b", "off", false), pod("c", "silent", true), pod("d", "ready", true),
			pod("e", "later", true), pod("f", "later", false))
		failed := false
		api.Before = func(verb string, _ schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "patch" && !failed {
				failed = true
				return errors.New("no connection")
			}
			return nil
		}
		nodes, pods := source.Nodes(api), source.Pods(api)
		c, err := New(api, nodes, pods)
		if err != nil {
			t.Fatal(err)
		}
		controllertest.Run(t, c, nodes, pods)
		settle := func() []string { time.Sleep(time.Minute); synctest.Wait(); return api.Log() }
		controllertest.Equal(t, "at first", settle(), "patch pods/status a", "delete pods a")
		if !controllertest.Change(api, "", "later", func(n *corev1.Node) {
			n.Spec.Taints = node("", "", taint).Spec.Taints
		}) {
			t.Fatal("no node")
		}
		controllertest.Equal(t, "the taint comes later", settle(), "patch pods/status e", "delete pods e")
		if !controllertest.Change(api, "ns", "f", func(p *corev1.Pod) {
			now := metav1.Now()
			p.DeletionTimestamp = &now
		}) {
			t.Fatal("no pod")
		}
		controllertest.Equal(t, "the deletion comes later", settle(), "patch pods/status f", "delete pods f")
		if !controllertest.Change(api, "", "ready", func(n *corev1.Node) {
			n.Status.Conditions[0].Status = corev1.ConditionFalse
		}) {
			t.Fatal("no node")
		}
		controllertest.Equal(t, "the node goes later", settle(), "patch pods/status d", "delete pods d")
		var left []string
		for _, p := range controllertest.All[*corev1.Pod](api) {
			left = append(left, p.Name+" "+string(p.Status.Phase))
		}
		controllertest.Equal(t, "left", left, "b Running", "c Running")
	})
}

// A node is gone and the process begins anew: its pods are removed after a while, finished ones, too.
func TestNodeWasGoneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finished := pod("finished", "gone", false)
		finished.Status.Phase = corev1.PodSucceeded
		kept := pod("kept", "here", false)
		kept.Status.Phase = corev1.PodFailed
		api := controllertest.New(node("here", "True"), finished, pod("running", "lost", false), kept)
		refused := 0 // a webhook refuses each deletion once
		api.Before = func(verb string, _ schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "delete" && refused < 2 {
				refused++
				return apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("a webhook says so"))
			}
			return nil
		}
		nodes, pods := source.Nodes(api), source.Pods(api)
		c, err := New(api, nodes, pods)
		if err != nil {
			t.Fatal(err)
		}
		controllertest.Run(t, c, nodes, pods)
		time.Sleep(quarantine - time.Second)
		if n := len(controllertest.All[*corev1.Pod](api)); n != 3 {
			t.Errorf("%d pods before the node's time is over", n)
		}
		time.Sleep(time.Minute)
		var left []string
		for _, p := range controllertest.All[*corev1.Pod](api) {
			left = append(left, p.Name)
		}
		controllertest.Equal(t, "pods", left, "kept")
	})
}

// TestSlowWrites: webhooks that take long for the pods of one namespace do not delay the removal of those of others.
func TestSlowWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []runtime.Object
		for i := range 20 {
			slow, other := pod(fmt.Sprint("slow-", i), "gone", false), pod(fmt.Sprint("other-", i), "gone", false)
			slow.Namespace = "slow"
			objects = append(objects, slow, other)
			for _, p := range []*corev1.Pod{slow, other} {
				ended := p.DeepCopy()
				ended.Name, ended.Spec.NodeName, ended.Status.Phase = "ended-"+p.Name, "here", corev1.PodSucceeded
				objects = append(objects, ended)
			}
		}
		api := controllertest.New(append(objects, node("here", "True"))...)
		client := controllertest.Slow{Interface: api, Namespace: "slow", Wait: func() { time.Sleep(30 * time.Second) }}
		nodes, pods := source.Nodes(client), source.Pods(client)
		c, err := New(client, nodes, pods)
		if err != nil {
			t.Fatal(err)
		}
		c.max = 1
		controllertest.Run(t, c, nodes, pods)
		left := func(namespace string) (n int) {
			for _, p := range controllertest.All[*corev1.Pod](api) {
				if p.Namespace == namespace {
					n++
				}
			}
			return n
		}
		time.Sleep(quarantine + time.Second)
		synctest.Wait()
		if n := left("ns"); n > 1 {
			t.Errorf("%d pods of the namespace without a webhook are left", n)
		}
		time.Sleep(time.Hour)
		if n := left("ns") + left("slow"); n > 1 {
			t.Errorf("%d pods are left, above the limit", n)
		}
	})
}
