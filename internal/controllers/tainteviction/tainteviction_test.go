package tainteviction

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
)

func node(taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Taints: taints}}
}

func noExecute() corev1.Taint {
	return corev1.Taint{Key: "example.com/drain", Effect: corev1.TaintEffectNoExecute}
}

// pod returns a pod on node n that tolerates the taint for some seconds; a negative number is for
// ever.
func pod(name string, seconds int64) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{NodeName: "n"}}
	toleration := corev1.Toleration{Key: "example.com/drain", Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectNoExecute}
	switch {
	case seconds > 0:
		toleration.TolerationSeconds = &seconds
		fallthrough
	case seconds < 0:
		p.Spec.Tolerations = []corev1.Toleration{toleration}
	}
	return p
}

type world struct {
	*testing.T
	*fake.Clientset
	events *record.FakeRecorder
}

func inWorld(t *testing.T, test func(w *world), objects ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, Clientset: fake.NewClientset(objects...), events: record.NewFakeRecorder(100)}
		nodes, pods := source.Nodes(w), source.Pods(w)
		c, err := New(w, w.events, nodes, pods)
		if err != nil {
			t.Fatal(err)
		}
		controllertest.Run(t, c, nodes, pods)
		test(w)
	})
}

func (w *world) setTaints(taints ...corev1.Taint) {
	w.Helper()
	if _, err := w.CoreV1().Nodes().Update(context.Background(), node(taints...), metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

// exists reports whether the pod is stored, after the controller has acted.
func (w *world) exists(name string) bool {
	w.Helper()
	synctest.Wait()
	_, err := w.CoreV1().Pods("ns").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	return err == nil
}

// A pod is evicted at once, after its tolerationSeconds, or never (L7.163).
func TestEviction(t *testing.T) {
	inWorld(t, func(w *world) {
		w.setTaints(noExecute())
		if w.exists("intolerant") || !w.exists("minute") {
			t.Error("at once: the pod without a toleration must be evicted, the other must stay")
		}
		time.Sleep(time.Minute - 1)
		if !w.exists("minute") {
			t.Error("evicted before its tolerationSeconds were over")
		}
		time.Sleep(time.Nanosecond)
		if w.exists("minute") {
			t.Error("not evicted when its tolerationSeconds were over")
		}
		time.Sleep(time.Hour)
		if !w.exists("forever") {
			t.Error("evicted although it tolerates the taint for ever")
		}
	}, node(), pod("intolerant", 0), pod("minute", 60), pod("forever", -1))
}

// A pod that its node refused stays: the back-off of the controller that replaces it depends on it. One that ran and
// has ended goes.
func TestRefusedPodsStay(t *testing.T) {
	refused, ended := pod("refused", 0), pod("ended", 0)
	refused.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "TaintToleration"}
	ended.Status = corev1.PodStatus{Phase: corev1.PodSucceeded}
	inWorld(t, func(w *world) {
		w.setTaints(noExecute())
		if !w.exists("refused") || w.exists("ended") {
			t.Error("only the pod that was refused must stay")
		}
	}, node(), refused, ended)
}

// A pod that was created for a tainted node is left to the node for a moment: its refusal makes the pod's controller
// wait. A node that does not answer delays the eviction, which a new pod of the same controller cannot repeat faster.
func TestNewPodsAreRefusedFirst(t *testing.T) {
	created := func(name string) *corev1.Pod {
		p := pod(name, 0)
		p.CreationTimestamp, p.Status.Phase = metav1.NewTime(time.Now().Truncate(time.Second)), corev1.PodPending
		return p
	}
	inWorld(t, func(w *world) {
		w.setTaints(noExecute())
		started := created("started")
		started.Status.StartTime = &started.CreationTimestamp
		pods := []*corev1.Pod{created("refused"), created("unanswered"), started}
		for _, p := range pods {
			if _, err := w.CoreV1().Pods("ns").Create(w.Context(), p, metav1.CreateOptions{}); err != nil {
				w.Fatal(err)
			}
		}
		if !w.exists("refused") || !w.exists("unanswered") || w.exists("started") {
			t.Error("only the pod that the node has accepted must go at once")
		}
		pods[0].Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "TaintToleration"}
		if _, err := w.CoreV1().Pods("ns").UpdateStatus(w.Context(), pods[0], metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(answers)
		if !w.exists("refused") || w.exists("unanswered") {
			t.Error("the refused pod must stay, the other one must go")
		}
	}, node())
}

// Changes of a pod or node do not restart its tolerationSeconds.
func TestTolerationSecondsAreNotRestarted(t *testing.T) {
	inWorld(t, func(w *world) {
		w.setTaints(noExecute())
		time.Sleep(40 * time.Second)
		changed := pod("minute", 60)
		changed.Labels = map[string]string{"a": "b"}
		if _, err := w.CoreV1().Pods("ns").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.setTaints(noExecute(), corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoSchedule})
		time.Sleep(20 * time.Second)
		if w.exists("minute") {
			t.Error("still there a minute after the taint was added")
		}
	}, node(), pod("minute", 60))
}

// L7.163: a pod that comes to a node with an old taint stays for its own tolerationSeconds, also if it replaces one of
// the same name between two looks. Otherwise its controller would replace it without end.
func TestPodsOnAnOldTaint(t *testing.T) {
	inWorld(t, func(w *world) {
		old, added := noExecute(), metav1.NewTime(time.Now().Add(-time.Hour))
		old.TimeAdded = &added
		w.setTaints(old)
		p := pod("late", 60)
		p.CreationTimestamp = metav1.Now()
		if _, err := w.CoreV1().Pods("ns").Create(w.Context(), p, metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		if !w.exists("late") {
			t.Fatal("evicted before its tolerationSeconds were over")
		}
		next := p.DeepCopy()
		next.UID, next.CreationTimestamp = "another", metav1.Now()
		if _, err := w.CoreV1().Pods("ns").Update(w.Context(), next, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		if !w.exists("late") {
			t.Fatal("the time of another pod of the name counts")
		}
		time.Sleep(time.Second)
		if w.exists("late") {
			t.Error("not evicted when its tolerationSeconds were over")
		}
	}, node())
}

// A taint that is removed in time cancels the eviction, and the next one starts anew.
func TestTaintRemovedInTime(t *testing.T) {
	inWorld(t, func(w *world) {
		w.setTaints(noExecute())
		time.Sleep(59 * time.Second)
		w.setTaints()
		controllertest.Equal(t, "events", controllertest.Events(w.events),
			"Normal TaintManagerEviction Cancelling deletion of Pod ns/minute")
		time.Sleep(time.Hour)
		if !w.exists("minute") {
			t.Fatal("evicted although the taint was removed")
		}
		w.setTaints(noExecute())
		time.Sleep(59 * time.Second)
		if !w.exists("minute") {
			t.Error("the time of the removed taint counts")
		}
	}, node(), pod("minute", 60))
}

// The condition is written before the pod is deleted; a request that fails is retried.
func TestEvictionIsRetried(t *testing.T) {
	no, notFound := errors.New("no connection"), apierrors.NewNotFound(corev1.Resource("pods"), "p") // of a webhook
	for _, step := range []struct {
		verb, resource string
		err            error
	}{{"get", "pods", no}, {"update", "pods/status", no}, {"delete", "pods", no}, {"update", "pods/status", notFound},
		{"delete", "pods", notFound}} {
		inWorld(t, func(w *world) {
			var last corev1.PodStatus
			w.PrependReactor("delete", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
				obj, err := w.Tracker().Get(a.GetResource(), "ns", "p")
				if err == nil {
					last = obj.(*corev1.Pod).Status
				}
				return false, nil, nil
			})
			controllertest.FailOnce(w.Clientset, step.verb, step.resource, step.err)
			w.setTaints(noExecute())
			time.Sleep(time.Second)
			if w.exists("p") {
				t.Errorf("%s of %s failed once: not retried", step.verb, step.resource)
			}
			if len(last.Conditions) != 1 || last.Conditions[0].Type != corev1.DisruptionTarget ||
				last.Conditions[0].Reason != "DeletionByTaintManager" {
				t.Errorf("%s of %s failed once: deleted with conditions %+v", step.verb, step.resource, last.Conditions)
			}
		}, node(), pod("p", 0))
	}
}

// A pod that was replaced by another of the same name, which the watch has not reported yet, is not
// evicted.
func TestReplacedPodStays(t *testing.T) {
	inWorld(t, func(w *world) {
		w.PrependReactor("get", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
			replaced := pod("p", 0)
			replaced.UID = "another"
			return true, replaced, nil
		})
		controllertest.Writes(w.Clientset)
		w.setTaints(noExecute())
		time.Sleep(time.Hour)
		controllertest.Equal(t, "writes", controllertest.Writes(w.Clientset), "update nodes")
	}, node(), pod("p", 0))
}
