package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	ktesting "k8s.io/client-go/testing"

	"carob/internal/controllers/rootca"
	"carob/internal/controllers/serviceaccount"
	"carob/internal/core/disruption"
)

// world is the manager on a fake API inside a bubble of virtual time.
type world struct {
	*testing.T
	client  *fake.Clientset
	objects *metadatafake.FakeMetadataClient // the objects of a namespace, for its deletion
}

func inWorld(t *testing.T, objects []runtime.Object, contents []runtime.Object, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		scheme := metadatafake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, client: fake.NewClientset(objects...),
			objects: metadatafake.NewSimpleMetadataClient(scheme, contents...)}
		w.client.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: []string{"list", "delete", "deletecollection"}},
			{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: []string{"list", "delete"}},
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true,
				Verbs: []string{"get", "list", "watch", "delete"}},
			{Name: "bindings", Kind: "Binding", Namespaced: true, Verbs: []string{"create"}},
		}}}
		w.client.PrependReactor("create", "namespaces", w.onFinalize)
		clients := Clients{Kubernetes: w.client, Metadata: w.objects}
		m, err := newManager(clients, func(string) (Clients, error) { return clients, nil },
			Options{RootCA: []byte("CA")})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { err = m.Run(ctx); close(done) }()
		<-m.synced
		synctest.Wait()
		test(w)
		cancel()
		<-done
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// onFinalize acts like the API server when the last finalizer is removed.
func (w *world) onFinalize(a ktesting.Action) (bool, runtime.Object, error) {
	if a.GetSubresource() != "finalize" {
		return false, nil, nil
	}
	n := a.(ktesting.CreateAction).GetObject().(*corev1.Namespace)
	if len(n.Spec.Finalizers) > 0 {
		return true, n, w.client.Tracker().Update(a.GetResource(), n, "")
	}
	return true, n, w.client.Tracker().Delete(a.GetResource(), "", n.Name)
}

func (w *world) exists(get func() error) bool {
	w.Helper()
	synctest.Wait()
	err := get()
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	return err == nil
}

func (w *world) namespace(name string) *corev1.Namespace {
	w.Helper()
	n, err := w.client.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return n
}

func ns(name string, deleting bool) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}}}
	if deleting {
		n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		n.Status.Phase = corev1.NamespaceTerminating
	}
	return n
}

func TestNamespaceGetsAccountAndAuthority(t *testing.T) {
	inWorld(t, []runtime.Object{ns("old", false)}, nil, func(w *world) {
		began := time.Now()
		if _, err := w.client.CoreV1().Namespaces().Create(w.Context(), ns("new", false),
			metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		account := func(namespace string) func() error {
			return func() error {
				_, err := w.client.CoreV1().ServiceAccounts(namespace).Get(w.Context(), serviceaccount.Name,
					metav1.GetOptions{})
				return err
			}
		}
		for _, name := range []string{"old", "new"} {
			if !w.exists(account(name)) {
				w.Errorf("namespace %s has no account", name)
			}
			synctest.Wait()
			ca, err := w.client.CoreV1().ConfigMaps(name).Get(w.Context(), rootca.Name, metav1.GetOptions{})
			if err != nil || ca.Data["ca.crt"] != "CA" {
				w.Errorf("authority of %s: %v %v", name, ca, err)
			}
		}
		if took := time.Since(began); took != 0 {
			w.Errorf("took %v of virtual time", took)
		}
		// Both come back when a user deletes or changes them.
		if err := w.client.CoreV1().ServiceAccounts("new").Delete(w.Context(), serviceaccount.Name,
			metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		changed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "new", Name: rootca.Name},
			Data: map[string]string{"ca.crt": "evil"}}
		if _, err := w.client.CoreV1().ConfigMaps("new").Update(w.Context(), changed,
			metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		if !w.exists(account("new")) {
			w.Error("the account did not come back")
		}
		if ca, err := w.client.CoreV1().ConfigMaps("new").Get(w.Context(), rootca.Name,
			metav1.GetOptions{}); err != nil || ca.Data["ca.crt"] != "CA" {
			w.Errorf("authority: %v %v", ca, err)
		}
	})
}

func content(kind, name string, finalizers ...string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, Finalizers: finalizers},
	}
}

func TestNamespaceIsEmptiedAndDeleted(t *testing.T) {
	inWorld(t, []runtime.Object{ns("x", true), ns("kept", false)}, []runtime.Object{content("Secret", "s")},
		func(w *world) {
			gone := !w.exists(func() error {
				_, err := w.client.CoreV1().Namespaces().Get(w.Context(), "x", metav1.GetOptions{})
				return err
			})
			if !gone {
				w.Errorf("still there: %+v", w.namespace("x").Status)
			}
			w.namespace("kept")
			for _, a := range w.objects.Actions() {
				if a.GetNamespace() != "x" {
					w.Errorf("touched another namespace: %v", a)
				}
			}
		})
}

// TestPodsAreDeletedFirst: nothing else is deleted while pods terminate, the status reports the
// wait, and the end of the last pod continues the deletion.
func TestPodsAreDeletedFirst(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n"}}
	inWorld(t, []runtime.Object{ns("x", true), pod},
		[]runtime.Object{content("Pod", "p", "slow"), content("Secret", "s")}, func(w *world) {
			for _, a := range w.objects.Actions() {
				if a.GetResource().Resource == "secrets" {
					w.Errorf("too early: %v", a)
				}
			}
			want := map[corev1.NamespaceConditionType]string{
				corev1.NamespaceContentRemaining:    "Some resources are remaining: pods. has 1 resource instances",
				corev1.NamespaceFinalizersRemaining: "Some content in the namespace has finalizers remaining: slow in 1 resource instances",
			}
			found := 0
			for _, c := range w.namespace("x").Status.Conditions {
				if text, ok := want[c.Type]; ok && c.Status == corev1.ConditionTrue && c.Message == text {
					found++
				}
			}
			if found != len(want) {
				w.Errorf("conditions %+v", w.namespace("x").Status.Conditions)
			}
			pods := corev1.SchemeGroupVersion.WithResource("pods")
			if err := w.objects.Tracker().Delete(pods, "x", "p"); err != nil {
				w.Fatal(err)
			}
			if err := w.client.CoreV1().Pods("x").Delete(w.Context(), "p", metav1.DeleteOptions{}); err != nil {
				w.Fatal(err)
			}
			began := time.Now()
			if w.exists(func() error {
				_, err := w.client.CoreV1().Namespaces().Get(w.Context(), "x", metav1.GetOptions{})
				return err
			}) {
				w.Error("still there")
			}
			if took := time.Since(began); took != 0 {
				w.Errorf("waited %v after the last pod", took)
			}
		})
}

func readyNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeNotReady,
			Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
			Status: corev1.ConditionTrue}}},
	}
}

func (w *world) taints(name string) []string {
	w.Helper()
	synctest.Wait()
	n, err := w.client.CoreV1().Nodes().Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	var list []string
	for i := range n.Spec.Taints {
		list = append(list, n.Spec.Taints[i].ToString())
	}
	return list
}

func (w *world) renew(node string, n int32) {
	w.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
		Spec: coordinationv1.LeaseSpec{LeaseTransitions: &n}}
	api := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err := api.Update(w.Context(), lease, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(w.Context(), lease, metav1.CreateOptions{})
	}
	if err != nil {
		w.Fatal(err)
	}
}

// TestNodeWithoutHeartbeats follows a node that is ready, stops sending heartbeats, loses its pods
// after their tolerationSeconds, and becomes ready again (L7.160–L7.163).
func TestNodeWithoutHeartbeats(t *testing.T) {
	five := int64(5)
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
			Spec: corev1.PodSpec{NodeName: node, Tolerations: []corev1.Toleration{
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
					Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &five},
			}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
	}
	inWorld(t, []runtime.Object{readyNode("n1"), readyNode("n2"), pod("a", "n1"), pod("b", "n2")}, nil, func(w *world) {
		if got := w.taints("n1"); len(got) != 0 {
			w.Errorf("a ready node keeps %v", got)
		}
		for i := range int32(5) { // heartbeats of n1 and n2, then only of n2
			w.renew("n1", i)
			w.renew("n2", i)
			time.Sleep(10 * time.Second)
		}
		for i := range int32(4) {
			w.renew("n2", 10+i)
			time.Sleep(10*time.Second + time.Millisecond)
		}
		if got := w.taints("n1"); len(got) != 2 {
			w.Errorf("a node without heartbeats has %v", got)
		}
		if got := w.taints("n2"); len(got) != 0 {
			w.Errorf("a node with heartbeats has %v", got)
		}
		a, err := w.client.CoreV1().Pods("default").Get(w.Context(), "a", metav1.GetOptions{})
		if err != nil || a.Status.Conditions[0].Status != corev1.ConditionFalse || a.Status.Phase != corev1.PodRunning {
			w.Errorf("pod of the node without heartbeats: %v %v", a, err)
		}
		time.Sleep(6 * time.Second)
		get := func(name string) func() error {
			return func() error {
				_, err := w.client.CoreV1().Pods("default").Get(w.Context(), name, metav1.GetOptions{})
				return err
			}
		}
		if w.exists(get("a")) {
			w.Error("the pod runs longer than its toleration")
		}
		if !w.exists(get("b")) {
			w.Error("evicted from a healthy node")
		}
		n, err := w.client.CoreV1().Nodes().Get(w.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			w.Fatal(err)
		}
		n.Status.Conditions[0].Status, n.Status.Conditions[0].LastHeartbeatTime = corev1.ConditionTrue, metav1.Now()
		if _, err := w.client.CoreV1().Nodes().UpdateStatus(w.Context(), n, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		if got := w.taints("n1"); len(got) != 0 {
			w.Errorf("the node that came back keeps %v", got)
		}
	})
}

func TestPodsOfLostNode(t *testing.T) { // L7.166 c
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "a"},
		Spec: corev1.PodSpec{NodeName: "n1"}}
	inWorld(t, []runtime.Object{readyNode("n1"), pod}, nil, func(w *world) {
		if err := w.client.CoreV1().Nodes().Delete(w.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		get := func() error {
			_, err := w.client.CoreV1().Pods("default").Get(w.Context(), "a", metav1.GetOptions{})
			return err
		}
		time.Sleep(39 * time.Second)
		if !w.exists(get) {
			w.Error("removed too early")
		}
		time.Sleep(2 * time.Second)
		if w.exists(get) {
			w.Error("still there")
		}
	})
}

// L7.166 b: a deleted pod that never had a node is removed. The API server itself removes most of
// these just after their deletion: the controller does not write to them.
func TestDeletedPodsWithoutNode(t *testing.T) {
	inWorld(t, nil, nil, func(w *world) {
		pods := w.client.CoreV1().Pods("default")
		get := func() error {
			_, err := pods.Get(w.Context(), "stuck", metav1.GetOptions{})
			return err
		}
		for _, name := range []string{"stuck", "passing"} {
			if _, err := pods.Create(w.Context(),
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
					DeletionTimestamp: new(metav1.Now())}}, metav1.CreateOptions{}); err != nil {
				w.Fatal(err)
			}
		}
		synctest.Wait()
		if err := pods.Delete(w.Context(), "passing", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		if !w.exists(get) {
			w.Error("removed too early")
		}
		time.Sleep(2 * time.Second)
		if w.exists(get) {
			w.Error("still there")
		}
		for _, a := range w.client.Actions() {
			if patch, ok := a.(ktesting.PatchAction); ok && a.GetResource().Resource == "pods" &&
				patch.GetName() != "stuck" {
				w.Errorf("%s of pod %s", a.GetVerb(), patch.GetName())
			}
		}
	})
}

// An object whose owner does not exist is deleted; one with an existing owner, or with an owner of
// an unknown kind, stays.
func TestObjectsWithoutOwnerAreDeleted(t *testing.T) {
	configMap := func(name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), OwnerReferences: owners}}
	}
	owner := func(kind, name string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: types.UID(name)}
	}
	inWorld(t, []runtime.Object{ns("ns", false)}, []runtime.Object{
		configMap("owner"), configMap("kept", owner("ConfigMap", "owner")),
		configMap("lost", owner("ConfigMap", "nobody")), configMap("strange", owner("Mystery", "nobody")),
	}, func(w *world) {
		time.Sleep(inventoryAfter + time.Minute)
		for name, stays := range map[string]bool{"owner": true, "kept": true, "lost": false, "strange": true} {
			there := w.exists(func() error {
				_, err := w.objects.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace("ns").Get(
					w.Context(), name, metav1.GetOptions{})
				return err
			})
			if there != stays {
				w.Errorf("%s: there %v, want %v", name, there, stays)
			}
		}
	})
}

// L10.68: each event of the disruption controller about budgets and their pods is recorded once.
func TestBudgetEvents(t *testing.T) {
	one := intstr.FromInt32(1)
	budget := func(name, app string) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1, UID: types.UID(name)},
			Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one,
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		}
	}
	pod := func(name, app string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			Labels: map[string]string{"app": app}}}
	}
	stuck := budget("stuck", "slow")
	inWorld(t, []runtime.Object{ns("default", false), budget("b", "web"), budget("a", "web"), budget("empty", "none"),
		pod("web-0", "web"), pod("slow-0", "slow")}, nil, func(w *world) {
		stuck.Status.DisruptedPods = map[string]metav1.Time{"slow-0": {Time: time.Now()}}
		if _, err := w.client.PolicyV1().PodDisruptionBudgets("default").Create(w.Context(), stuck,
			metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(disruption.Patience + time.Second)
		again := pod("web-0", "web")
		again.Status.Phase = corev1.PodRunning
		if _, err := w.client.CoreV1().Pods("default").Update(w.Context(), again, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
		list, err := w.client.CoreV1().Events("").List(w.Context(), metav1.ListOptions{})
		if err != nil {
			w.Fatal(err)
		}
		var got []string
		for _, e := range list.Items {
			if e.Source.Component == "controllermanager" {
				got = append(got,
					fmt.Sprintf("%s %s %s %d: %s", e.InvolvedObject.Name, e.Type, e.Reason, e.Count, e.Message))
			}
		}
		slices.Sort(got)
		want := []string{
			"empty Normal NoPods 1: No matching pods found",
			"slow-0 Warning NotDeleted 1: Pod was expected by PDB default/stuck to be deleted but it wasn't",
			`web-0 Warning MultiplePodDisruptionBudgets 1: Pod "default"/"web-0" matches multiple PodDisruptionBudgets.  Chose "a" arbitrarily.`,
		}
		if !slices.Equal(got, want) {
			w.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// L0.6: the condition of a pod that is about to be deleted has the observed generation.
func TestGenerationOfDisruption(t *testing.T) {
	tainted := readyNode("tainted")
	tainted.Spec.Taints = []corev1.Taint{{Key: "example.com/away", Effect: corev1.TaintEffectNoExecute}}
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Generation: 7},
			Spec:       corev1.PodSpec{NodeName: node},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: 6},
		}
	}
	inWorld(t, []runtime.Object{readyNode("n1"), readyNode("tainted"), pod("evicted", "tainted"),
		pod("orphan", "gone")}, nil, func(w *world) {
		last := map[string]corev1.PodStatus{}
		w.client.PrependReactor("delete", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
			name := a.(ktesting.DeleteAction).GetName()
			obj, err := w.client.Tracker().Get(a.GetResource(), a.GetNamespace(), name)
			if err == nil {
				last[name] = obj.(*corev1.Pod).Status
			}
			return false, nil, nil
		})
		if _, err := w.client.CoreV1().Nodes().Update(w.Context(), tainted, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		for name, want := range map[string]corev1.PodStatus{
			"evicted": {Phase: corev1.PodRunning, ObservedGeneration: 6,
				Conditions: []corev1.PodCondition{{Reason: "DeletionByTaintManager"}}},
			"orphan": {Phase: corev1.PodFailed, ObservedGeneration: 7,
				Conditions: []corev1.PodCondition{{Reason: "DeletionByPodGC"}}},
		} {
			got := last[name]
			if len(got.Conditions) != 1 {
				w.Errorf("%s: %+v", name, got)
				continue
			}
			if c := got.Conditions[0]; got.Phase != want.Phase || got.ObservedGeneration != want.ObservedGeneration ||
				c.Type != corev1.DisruptionTarget || c.Reason != want.Conditions[0].Reason ||
				c.ObservedGeneration != 7 {
				w.Errorf("%s: %+v", name, got)
			}
		}
	})
}

// clockCounter counts the calls that report that the clock was set.
type clockCounter struct {
	idle
	calls int
}

func (c *clockCounter) ClockSet() { c.calls++ }

func TestFollowClock(t *testing.T) {
	c := &clockCounter{}
	m := Manager{controllers: []controller{idle{}, c}, clock: func(_ context.Context, changed func()) error {
		changed()
		changed()
		return nil
	}}
	if m.followClock(t.Context()); c.calls != 2 {
		t.Errorf("ClockSet was called %d times, want 2", c.calls)
	}
}
