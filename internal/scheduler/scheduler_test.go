package scheduler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	ktesting "k8s.io/client-go/testing"

	"carob/internal/base/journal"
	"carob/internal/core/podstatus"
	"carob/internal/scheduler/config"
)

// world is a scheduler with a fake API in virtual time.
type world struct {
	*testing.T
	client *fake.Clientset
	log    *recorder
	stop   func()
	// bind, if set, handles a binding instead of the fake API.
	bind func(pod, node string) error
	// wrote, if set, is called before the answer to an update of a claim or volume.
	wrote func(metav1.Object)
	// extender, if set, handles calls to extenders.
	extender http.Handler
}

// RoundTrip carries a call to an extender without a network, which does not work in virtual time.
func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.extender == nil {
		return nil, errors.New("connection refused")
	}
	answer, done := httptest.NewRecorder(), make(chan struct{})
	go func() { w.extender.ServeHTTP(answer, r); close(done) }()
	select {
	case <-done:
		return answer.Result(), nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

type recorder struct {
	mu      sync.Mutex
	entries []journal.Entry
}

func (r *recorder) Record(e journal.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, e)
}

// inWorld runs a test with these objects in the API from the start.
func inWorld(t *testing.T, objects []runtime.Object, test func(w *world)) {
	t.Helper()
	inConfiguredWorld(t, nil, objects, test)
}

// inConfiguredWorld is inWorld with a configuration.
func inConfiguredWorld(t *testing.T, c *config.Config, objects []runtime.Object, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, client: fake.NewClientset(objects...), log: &recorder{}}
		var version atomic.Int64 // the fake has none, but a watch may show a state that is older than a response
		w.client.PrependReactor("update", "resourceclaims", func(a ktesting.Action) (bool, runtime.Object, error) {
			o := a.(ktesting.UpdateAction).GetObject().(metav1.Object)
			o.SetResourceVersion(strconv.FormatInt(version.Add(1), 10))
			return false, nil, nil
		})
		s, err := NewForClient(lateAnswers{api{w.client, w}, func(o metav1.Object) {
			if w.wrote != nil {
				w.wrote(o)
			}
		}}, Options{Journal: w.log, Config: c, Extenders: w})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { err = s.Run(ctx); close(done) }()
		w.stop = func() { cancel(); <-done }
		<-s.Synced()
		synctest.Wait()
		test(w)
		w.stop()
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// api is the fake API with working bindings: the fake does not implement the call, and would hold
// its lock while a test delays a binding.
type api struct {
	*fake.Clientset
	w *world
}

func (a api) CoreV1() typedcorev1.CoreV1Interface { return core{a.Clientset.CoreV1(), a.w} }

type core struct {
	typedcorev1.CoreV1Interface
	w *world
}

func (c core) Pods(namespace string) typedcorev1.PodInterface {
	return pods{c.CoreV1Interface.Pods(namespace), c.w}
}

type pods struct {
	typedcorev1.PodInterface
	w *world
}

func (p pods) Bind(ctx context.Context, b *corev1.Binding, _ metav1.CreateOptions) error {
	if p.w.bind != nil {
		if err := p.w.bind(b.Name, b.Target.Name); err != nil {
			return err
		}
	}
	pod, err := p.Get(ctx, b.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	pod.Spec.NodeName = b.Target.Name
	_, err = p.Update(ctx, pod, metav1.UpdateOptions{})
	return err
}

func (w *world) pod(name string) *corev1.Pod {
	w.Helper()
	p, err := w.client.CoreV1().Pods("default").Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return p
}

func (w *world) create(pods ...*corev1.Pod) {
	w.Helper()
	for _, p := range pods {
		if _, err := w.client.CoreV1().Pods(p.Namespace).Create(w.Context(), p, metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
	}
	synctest.Wait()
}

func (w *world) update(p *corev1.Pod) {
	w.Helper()
	if _, err := w.client.CoreV1().Pods(p.Namespace).Update(w.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) delete(name string) {
	w.Helper()
	if err := w.client.CoreV1().Pods("default").Delete(w.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) on(name, node string) {
	w.Helper()
	if got := w.pod(name).Spec.NodeName; got != node {
		w.Errorf("pod %s is on %q, want %q", name, got, node)
	}
}

func (w *world) events(reason string) []eventsv1.Event {
	w.Helper()
	list, err := w.client.EventsV1().Events("").List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	var found []eventsv1.Event
	for _, e := range list.Items {
		if e.Reason == reason {
			found = append(found, e)
		}
	}
	return found
}

func (w *world) condition(name string, t corev1.PodConditionType) corev1.PodCondition {
	w.Helper()
	if c := podstatus.Condition(w.pod(name).Status.Conditions, t); c != nil {
		return *c
	}
	return corev1.PodCondition{}
}

func node(name, cpu string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse(cpu), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110"),
		}},
	}
}

func pod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			SchedulerName: corev1.DefaultSchedulerName,
			Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)},
			}}},
		},
	}
}

func withPriority(p *corev1.Pod, priority int32) *corev1.Pod {
	p.Spec.Priority = &priority
	return p
}

func TestBindsAtOnce(t *testing.T) { // L2.43
	inWorld(t, []runtime.Object{node("n1", "4")}, func(w *world) {
		began := time.Now()
		w.create(pod("a", "1"))
		w.on("a", "n1")
		if took := time.Since(began); took != 0 {
			w.Errorf("binding waited %v of virtual time", took)
		}
		if n := len(w.events("Scheduled")); n != 0 {
			w.Errorf("%d events are written while the pod starts", n)
		}
		time.Sleep(writeDelay)
		synctest.Wait()
		e := w.events("Scheduled")
		if len(e) != 1 {
			w.Fatalf("%d events, want 1", len(e))
		}
		if e[0].Note != "Successfully assigned default/a to n1" || e[0].Action != "Binding" || e[0].Type != "Normal" ||
			e[0].ReportingController != "default-scheduler" || !e[0].EventTime.Time.Equal(began) {
			w.Errorf("event %+v", e[0])
		}
		if len(w.log.entries) != 1 || w.log.entries[0].Key != "n1" {
			w.Errorf("journal %+v", w.log.entries)
		}
	})
}

func TestPodsOfOtherSchedulersAreIgnored(t *testing.T) { // L2.1
	other := pod("other", "1")
	other.Spec.SchedulerName = "somebody-else"
	inWorld(t, []runtime.Object{node("n1", "4"), other}, func(w *world) { w.on("other", "") })
}

func TestUnschedulable(t *testing.T) { // L2.40–L2.42, L2.5
	inWorld(t, []runtime.Object{node("n1", "1")}, func(w *world) {
		w.create(pod("big", "2"))
		want := "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
		c := w.condition("big", corev1.PodScheduled)
		if c.Status != corev1.ConditionFalse || c.Reason != "Unschedulable" || c.Message != want {
			w.Errorf("condition %+v", c)
		}
		e := w.events("FailedScheduling")
		if len(e) != 1 || e[0].Note != want || e[0].Action != "Scheduling" || e[0].Type != "Warning" {
			w.Errorf("events %+v", e)
		}
		patches := len(w.client.Actions())
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := len(w.client.Actions()); got != patches {
			w.Errorf("%d API calls although nothing changed", got-patches)
		}
		n := node("n1", "1")
		n.Labels["heartbeat"] = "no"
		if _, err := w.client.CoreV1().Nodes().Update(w.Context(), n, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
		if got := len(w.log.entries); got != 1 {
			w.Errorf("a label re-queued a pod that needs cpu: %d attempts", got)
		}
		if _, err := w.client.CoreV1().Nodes().Create(w.Context(), node("n2", "4"),
			metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
		w.on("big", "n2")
	})
}

func TestNoNodes(t *testing.T) { // L2.41
	inWorld(t, nil, func(w *world) {
		w.create(pod("a", "1"))
		if c := w.condition("a", corev1.PodScheduled); c.Message != "no nodes available to schedule pods" {
			w.Errorf("condition %+v", c)
		}
		if _, err := w.client.CoreV1().Nodes().Create(w.Context(), node("n1", "4"),
			metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
		w.on("a", "n1")
	})
}

func TestFreedResourcesAreUsed(t *testing.T) { // L2.5
	inWorld(t, []runtime.Object{node("n1", "2")}, func(w *world) {
		w.create(pod("a", "2"), pod("b", "2"))
		w.on("b", "")
		w.delete("a")
		w.on("b", "n1")
	})
}

func TestFinishedPodsUseNoResources(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "2")}, func(w *world) {
		w.create(pod("a", "2"), pod("b", "2"))
		a := w.pod("a")
		a.Status.Phase = corev1.PodSucceeded
		w.update(a)
		w.on("b", "n1")
	})
}

func TestGates(t *testing.T) { // L2.2, L11.22
	inWorld(t, []runtime.Object{node("n1", "4")}, func(w *world) {
		p := pod("a", "1")
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g1"}, {Name: "g2"}}
		w.create(p)
		w.on("a", "")
		p = w.pod("a")
		p.Spec.SchedulingGates = p.Spec.SchedulingGates[1:]
		w.update(p)
		w.on("a", "")
		p = w.pod("a")
		p.Spec.SchedulingGates = nil
		w.update(p)
		w.on("a", "n1")
	})
}

func TestPriorityGoesFirst(t *testing.T) { // L2.2
	low, high := withPriority(pod("low", "2"), 1), withPriority(pod("high", "2"), 2)
	inWorld(t, []runtime.Object{low, high}, func(w *world) {
		if _, err := w.client.CoreV1().Nodes().Create(w.Context(), node("n1", "2"),
			metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
		w.on("high", "n1")
		w.on("low", "")
	})
}

func TestAssumedPodsUseResources(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "2")}, func(w *world) {
		release := make(chan struct{})
		w.bind = func(pod, _ string) error {
			if pod == "a" {
				<-release
			}
			return nil
		}
		w.create(pod("a", "2"), pod("b", "2"))
		w.on("b", "")
		close(release)
		synctest.Wait()
		w.on("a", "n1")
		w.on("b", "")
	})
}

// Bindings do not wait for each other: each takes 10 ms of virtual time, and fifty together must
// not take longer.
func TestBurst(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "64")}, func(w *world) {
		w.bind = func(string, string) error { time.Sleep(10 * time.Millisecond); return nil }
		began := time.Now()
		for i := range 50 {
			w.create(pod(fmt.Sprint("p", i), "100m"))
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		for i := range 50 {
			w.on(fmt.Sprint("p", i), "n1")
		}
		if took := time.Since(began); took != 10*time.Millisecond {
			w.Errorf("took %v", took)
		}
	})
}

func TestPreemption(t *testing.T) { // L2.50–L2.54
	low := withPriority(pod("low", "2"), 1)
	low.Spec.NodeName = "n1"
	inWorld(t, []runtime.Object{node("n1", "2"), low}, func(w *world) {
		// The victim ends slowly: the fake API would delete it at once.
		w.client.PrependReactor("delete", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
			obj, err := w.client.Tracker().Get(a.GetResource(), "default", "low")
			if err != nil {
				return true, nil, err
			}
			p := obj.(*corev1.Pod).DeepCopy()
			if p.DeletionTimestamp != nil {
				return false, nil, nil
			}
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			return true, nil, w.client.Tracker().Update(a.GetResource(), p, "default")
		})
		w.create(withPriority(pod("high", "2"), 1000))
		high := w.pod("high")
		if high.Status.NominatedNodeName != "n1" || high.Spec.NodeName != "" {
			w.Errorf("nominated to %q, on %q", high.Status.NominatedNodeName, high.Spec.NodeName)
		}
		if c := w.condition("high", corev1.PodScheduled); c.Message != "0/1 nodes are available: 1 Insufficient cpu." {
			w.Errorf("condition %+v", c)
		}
		c := w.condition("low", corev1.DisruptionTarget)
		if c.Status != corev1.ConditionTrue || c.Reason != "PreemptionByScheduler" ||
			c.Message != "default-scheduler: preempting to accommodate a higher priority pod" {
			w.Errorf("victim's condition %+v", c)
		}
		e := w.events("Preempted")
		if len(e) != 1 || e[0].Note != "Preempted by pod uid-high on node n1" || e[0].Action != "Preempting" {
			w.Errorf("events %+v", e)
		}
		if got := len(w.events("FailedScheduling")); got != 1 {
			w.Errorf("%d failures recorded, want 1: marking the victim does not cause a retry", got)
		}
		// A new pod of lower priority must not take the resources that the victim will free.
		w.create(withPriority(pod("between", "1"), 5))
		w.delete("low")
		w.on("high", "n1")
		w.on("between", "")
	})
}

// Pods that need a preemption at the same time read the disruption budgets once, and do not spend the same allowed
// disruption twice.
func TestPreemptionsShareBudgets(t *testing.T) { // L2.51
	objects := []runtime.Object{withPriority(pod("high-1", "2"), 1000), withPriority(pod("high-2", "2"), 1000),
		&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept", UID: "kept"},
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}}},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}}}
	for i, low := range []*corev1.Pod{withPriority(pod("kept-1", "2"), 1), withPriority(pod("kept-2", "2"), 1),
		withPriority(pod("other", "2"), 500)} {
		low.Spec.NodeName = fmt.Sprint("n", i)
		if low.Name != "other" {
			low.Labels = map[string]string{"app": "kept"}
		}
		objects = append(objects, node(low.Spec.NodeName, "2"), low)
	}
	inWorld(t, objects, func(w *world) {
		left, reads := 0, 0
		list, err := w.client.CoreV1().Pods("default").List(w.Context(), metav1.ListOptions{})
		if err != nil {
			w.Fatal(err)
		}
		for _, p := range list.Items {
			if p.Labels["app"] == "kept" {
				left++
			}
		}
		for _, a := range w.client.Actions() {
			if a.Matches("list", "poddisruptionbudgets") {
				reads++
			}
		}
		if left != 1 || reads != 1 || w.pod("high-1").Spec.NodeName == "" || w.pod("high-2").Spec.NodeName == "" {
			w.Errorf("%d pods of the budget are left, which was read %d times; on %q and %q", left, reads,
				w.pod("high-1").Spec.NodeName, w.pod("high-2").Spec.NodeName)
		}
	})
}

// A pod is not tried again before the watch shows that its victims end: it would preempt them again.
func TestVictimsAreAwaited(t *testing.T) {
	objects := []runtime.Object{node("n1", "2"), node("n2", "2")}
	for _, low := range []*corev1.Pod{withPriority(pod("low", "2"), 1), withPriority(pod("x", "1"), 500),
		withPriority(pod("y", "1"), 500)} {
		low.Spec.NodeName = "n2"
		if low.Name == "low" {
			low.Spec.NodeName = "n1"
		}
		objects = append(objects, low)
	}
	inWorld(t, objects, func(w *world) {
		deleted := 0
		w.client.PrependReactor("delete", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
			if d, ok := a.(ktesting.DeleteAction); !ok || d.GetName() != "low" {
				return false, nil, nil
			}
			deleted++
			return true, nil, nil // accepted; the watch is late
		})
		w.create(withPriority(pod("high", "2"), 1000))
		w.delete("x") // with y gone, too, there would be room
		time.Sleep(time.Minute)
		synctest.Wait()
		if events := len(w.events("FailedScheduling")); deleted != 1 || events != 1 {
			w.Errorf("the victim was deleted %d times, with %d events", deleted, events)
		}
		if err := w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default",
			"low"); err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
		w.on("high", "n1")
	})
}

func TestDeletedWhileItWaits(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "1")}, func(w *world) {
		w.create(pod("a", "2"))
		w.delete("a")
		if _, err := w.client.CoreV1().Nodes().Create(w.Context(), node("n2", "4"),
			metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(writeDelay)
		synctest.Wait()
		if got := len(w.events("Scheduled")); got != 0 {
			w.Errorf("%d bindings of a deleted pod", got)
		}
	})
}

func TestTriedAgainAfterFiveMinutes(t *testing.T) { // L2.3
	inWorld(t, []runtime.Object{node("n1", "1")}, func(w *world) {
		w.create(pod("a", "2"))
		time.Sleep(maxUnschedulable)
		synctest.Wait()
		if got := len(w.log.entries); got != 2 {
			w.Errorf("%d attempts, want 2", got)
		}
	})
}

// L2.6: for a pod that is deleted before it is scheduled, and kept by finalizers, one event says
// that it is skipped; not for a pod with scheduling gates.
func TestDeletedBeforePlaced(t *testing.T) {
	waits, blocked := pod("waits", "8"), pod("gated", "1")
	blocked.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/gate"}}
	for _, p := range []*corev1.Pod{waits, blocked} {
		p.Finalizers, p.DeletionTimestamp = []string{"example.com/keep"}, &metav1.Time{Time: time.Unix(1, 0)}
	}
	inWorld(t, []runtime.Object{node("n1", "2"), waits, blocked}, func(w *world) {
		again := w.pod("waits")
		again.Labels = map[string]string{"changed": "again"}
		w.update(again)
		e := w.events("FailedScheduling")
		if len(e) != 1 || e[0].Type != "Warning" || e[0].Action != "Scheduling" ||
			e[0].Note != "skip schedule deleting pod: default/waits" || e[0].Series != nil {
			w.Errorf("events %+v", e)
		}
	})
	// A pod that was rejected before, and then deleted, gets the same event once.
	refused := pod("refused", "8")
	inWorld(t, []runtime.Object{node("n1", "2"), refused}, func(w *world) {
		deleted := w.pod("refused")
		deleted.DeletionTimestamp = waits.DeletionTimestamp
		w.update(deleted)
		if e := w.events("FailedScheduling"); len(e) != 1 || e[0].Series == nil || e[0].Series.Count != 2 {
			w.Errorf("events %+v", e)
		}
	})
}

// L2.5: an event re-queues only the pods that it may help: an unschedulable pod stays parked when
// another pod is deleted from a node that cannot run it.
func TestEventsRequeueOnlyPodsTheyHelp(t *testing.T) {
	filler := pod("filler", "2")
	filler.Spec.NodeName = "n1"
	tainted := node("n2", "8")
	tainted.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	removed := pod("guest", "1")
	removed.Spec.NodeName = "n2"
	inWorld(t, []runtime.Object{node("n1", "2"), tainted, filler, removed}, func(w *world) {
		w.create(pod("waits", "2"))
		w.delete("guest")
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := len(w.log.entries); got != 1 {
			w.Errorf("%d attempts, want 1: free resources on a tainted node do not help", got)
		}
		w.delete("filler")
		w.on("waits", "n1")
	})
}

// L2.10: pods of a Service are spread by default, without constraints.
func TestServicePodsAreSpread(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}}}
	inWorld(t, []runtime.Object{node("n1", "1000"), node("n2", "64"), service}, func(w *world) {
		for i := range 4 {
			p := pod(fmt.Sprint("web", i), "8")
			p.Labels = map[string]string{"app": "web"}
			w.create(p)
			w.create(pod(fmt.Sprint("other", i), "8")) // placed on the emptier node
		}
		on := map[string]int{}
		for i := range 4 {
			on[w.pod(fmt.Sprint("web", i)).Spec.NodeName]++
			w.on(fmt.Sprint("other", i), "n1")
		}
		if on["n1"] != 2 || on["n2"] != 2 {
			w.Errorf("pods of the service on nodes: %v", on)
		}
	})
}

// L2.30: the feature requirements of a pod are computed before unused fields are dropped.
func TestNodeDeclaresFeatures(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "4")}, func(w *world) {
		p := pod("a", "1")
		never := corev1.ContainerRestartPolicyNever
		p.Spec.Containers[0].RestartPolicy = &never
		p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action: corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn,
				Values: []int32{1}}}}
		w.create(p)
		w.on("a", "")
		n := node("n1", "4")
		n.Status.DeclaredFeatures = []string{"RestartAllContainersOnContainerExits"}
		if _, err := w.client.CoreV1().Nodes().Update(w.Context(), n, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.on("a", "n1")
	})
}

// L2.52: a nominated pod loses its nomination to a more important one, and when no preemption can
// help it any more.
func TestNominationIsTakenBack(t *testing.T) {
	low := withPriority(pod("low", "2"), 1)
	low.Spec.NodeName = "n1"
	inWorld(t, []runtime.Object{node("n1", "2"), low}, func(w *world) {
		w.client.PrependReactor("delete", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
			obj, err := w.client.Tracker().Get(a.GetResource(), "default", "low")
			if err != nil || a.(ktesting.DeleteAction).GetName() != "low" {
				return false, nil, nil //nolint:nilerr // the tracker handles it
			}
			p := obj.(*corev1.Pod).DeepCopy()
			if p.DeletionTimestamp != nil {
				return true, nil, nil // graceful deletion
			}
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			return true, nil, w.client.Tracker().Update(a.GetResource(), p, "default")
		})
		w.create(withPriority(pod("middle", "2"), 5))
		if got := w.pod("middle").Status.NominatedNodeName; got != "n1" {
			w.Fatalf("middle is nominated to %q", got)
		}
		w.create(withPriority(pod("high", "2"), 9))
		if got := w.pod("high").Status.NominatedNodeName; got != "n1" {
			w.Errorf("high is nominated to %q", got)
		}
		if got := w.pod("middle").Status.NominatedNodeName; got != "" {
			w.Errorf("middle keeps the nomination to %q that now belongs to high", got)
		}
		// The node's capacity shrinks: no preemption helps high any more.
		if _, err := w.client.CoreV1().Nodes().Update(w.Context(), node("n1", "1"),
			metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
		if err := w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default",
			"low"); err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.pod("high").Status.NominatedNodeName; got != "" {
			w.Errorf("high keeps the nomination to %q, where it can't run", got)
		}
	})
}

// The resources reserved for a pod are freed when it is deleted.
func TestReservationEndsWithItsPod(t *testing.T) {
	first := withPriority(pod("first", "2"), 9)
	first.Status.NominatedNodeName = "n1"
	first.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	inWorld(t, []runtime.Object{node("n1", "2"), first}, func(w *world) {
		w.create(pod("waits", "1"))
		w.on("waits", "")
		w.delete("first")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.on("waits", "n1")
	})
}

// TestProfiles: each scheduler name has its profile, and its name in events (L2.1, L2.42).
func TestProfiles(t *testing.T) {
	c, err := config.Parse([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: 3
profiles:
- schedulerName: default-scheduler
- schedulerName: packer
  plugins:
    preEnqueue: {disabled: [{name: SchedulingGates}]}
    postFilter: {disabled: [{name: DefaultPreemption}]}
    multiPoint: {disabled: [{name: TaintToleration}]}
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated}}
`))
	if err != nil {
		t.Fatal(err)
	}
	tainted := node("n3", "64")
	tainted.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	low := pod("low", "8")
	low.Spec.NodeName = "n2"
	inConfiguredWorld(t, c, []runtime.Object{node("n1", "64"), node("n2", "64"), tainted, low}, func(w *world) {
		packed := func(name, cpu string) *corev1.Pod {
			p := pod(name, cpu)
			p.Spec.SchedulerName = "packer"
			return p
		}
		w.create(pod("spread", "1"), packed("packed", "1"))
		w.on("spread", "n1")
		w.on("packed", "n2")
		gatedPod := packed("gated", "60")
		gatedPod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
		w.create(gatedPod)
		if w.pod("gated").Spec.NodeName == "" {
			w.Error("a gate blocks a pod although its profile disables gates")
		}
		w.create(packed("elsewhere", "60"))
		w.create(withPriority(packed("important", "60"), 1000))
		const want = "0/3 nodes are available: 3 Insufficient cpu."
		if c := w.condition("important", corev1.PodScheduled); c.Message != want {
			w.Errorf("%q, want %q: this profile does not preempt", c.Message, want)
		}
		for _, e := range w.events("FailedScheduling") {
			if e.ReportingController != "packer" {
				w.Errorf("the event is from %q", e.ReportingController)
			}
		}
	})
}
