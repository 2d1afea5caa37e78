package disruption

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/source"
	"carob/internal/core/disruption"
)

// budget selects the pods with the label app=web.
func budget(minAvailable string) *policyv1.PodDisruptionBudget {
	value := intstr.Parse(minAvailable)
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "b", Generation: 1},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &value,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}
}

func pod(name string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
			Labels: map[string]string{"app": "web"}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

type world struct {
	*testing.T
	*fake.Clientset
	events    *record.FakeRecorder
	inventory *inventory.Inventory
}

// inWorld runs the controller; its inventory has only the kind ConfigMap.
func inWorld(t *testing.T, objects []runtime.Object, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, Clientset: fake.NewClientset(objects...), events: record.NewFakeRecorder(100)}
		w.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: []string{"get", "list", "watch", "delete"}},
		}}}
		scheme := metadatafake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		inv := inventory.New(w.Discovery(), metadatafake.NewSimpleMetadataClient(scheme), 3*time.Second)
		w.inventory = inv
		budgets, pods := source.Budgets(w), source.Pods(w)
		c, err := New(w, w.events, inv, budgets, pods)
		if err != nil {
			t.Fatal(err)
		}
		controllertest.Run(t, both{c, inv}, budgets, pods)
		test(w)
	})
}

type both struct{ a, b controllertest.Runner }

func (x both) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() { x.b.Run(ctx); close(done) }()
	x.a.Run(ctx)
	<-done
}

func (w *world) expect(what string, expected, healthy, desired, allowed int32) {
	w.Helper()
	synctest.Wait()
	b, err := w.PolicyV1().PodDisruptionBudgets("ns").Get(context.Background(), "b", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	got := [4]int32{b.Status.ExpectedPods, b.Status.CurrentHealthy, b.Status.DesiredHealthy,
		b.Status.DisruptionsAllowed}
	if want := [4]int32{expected, healthy, desired, allowed}; got != want {
		w.Errorf("%s: expected, healthy, desired, allowed = %v, want %v", what, got, want)
	}
}

// W10.10: the status follows the pods that the budget selects.
func TestStatusFollowsPods(t *testing.T) {
	inWorld(t, []runtime.Object{budget("1"), pod("a", corev1.ConditionTrue), pod("b", corev1.ConditionTrue)},
		func(w *world) {
			w.expect("two ready pods", 2, 2, 1, 1)
			if _, err := w.CoreV1().Pods("ns").UpdateStatus(t.Context(), pod("a", corev1.ConditionFalse),
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.expect("one of them ready", 2, 1, 1, 0)
			if err := w.CoreV1().Pods("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			w.expect("one pod", 1, 1, 1, 0)
			other := pod("c", corev1.ConditionTrue)
			other.Labels = nil
			if _, err := w.CoreV1().Pods("ns").Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.expect("a pod without the label", 1, 1, 1, 0)
		})
}

// W10.18: a pod whose eviction was allowed does not count for two minutes; if it still exists then, it counts again.
func TestEvictionThatDoesNotHappen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget("1")
		b.Status.DisruptedPods = map[string]metav1.Time{"a": metav1.Now()}
		w := &world{T: t, Clientset: fake.NewClientset(b, pod("a", corev1.ConditionTrue),
			pod("b", corev1.ConditionTrue)), events: record.NewFakeRecorder(100)}
		budgets, pods := source.Budgets(w), source.Pods(w)
		c, err := New(w, w.events, nil, budgets, pods)
		if err != nil {
			t.Fatal(err)
		}
		controllertest.Run(t, c, budgets, pods)
		w.expect("at first", 2, 1, 1, 0)
		time.Sleep(disruption.Patience - time.Second)
		w.expect("before the end", 2, 1, 1, 0)
		time.Sleep(2 * time.Second)
		w.expect("at the end", 2, 2, 1, 1)
		controllertest.Equal(t, "events", controllertest.Events(w.events),
			"Warning NotDeleted Pod was expected by PDB ns/b to be deleted but it wasn't")
	})
}

// W10.23: a write that conflicts waits for the watch; one that fails is retried.
func TestFailedWrites(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "poddisruptionbudgets"}, "b",
		errors.New("a webhook says so"))
	for _, err := range []error{conflict, errors.New("no connection")} {
		inWorld(t, []runtime.Object{budget("1"), pod("a", corev1.ConditionTrue), pod("b", corev1.ConditionTrue)},
			func(w *world) {
				w.expect("at first", 2, 2, 1, 1)
				controllertest.FailOnce(w.Clientset, "update", "poddisruptionbudgets/status", err)
				if err := w.CoreV1().Pods("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				w.expect(fmt.Sprint("after ", err), 1, 1, 1, 0)
			})
	}
}

// A budget with a percentage allows no disruption while the controller of a pod is of an unknown
// kind, and reports the reason (W10.15, W10.19, W10.20). Before the kinds are known, the stored status stays.
func TestUnknownController(t *testing.T) {
	owned, yes := pod("a", corev1.ConditionTrue), true
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Herd", Name: "h", UID: "h",
		Controller: &yes}}
	b := budget("50%")
	b.Status.DisruptionsAllowed = 7
	inWorld(t, []runtime.Object{b, owned}, func(w *world) {
		w.expect("kinds are not known yet", 0, 0, 0, 7)
		time.Sleep(10 * time.Second)
		w.expect("the kind is unknown", 0, 0, 0, 0)
		stored, err := w.PolicyV1().PodDisruptionBudgets("ns").Get(t.Context(), "b", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c := stored.Status.Conditions; len(c) != 1 || c[0].Status != metav1.ConditionFalse ||
			c[0].Reason != policyv1.SyncFailedReason {
			t.Errorf("conditions %+v", c)
		}
		time.Sleep(time.Minute)
		controllertest.Equal(t, "events", controllertest.Events(w.events),
			"Warning CalculateExpectedPodCountFailed Failed to calculate the number of expected pods: the kind Herd of example.com/v1 is unknown")
	})
}

// W10.11: a pod that several budgets select is reported once, until that changes.
func TestSeveralBudgets(t *testing.T) {
	second := budget("1")
	second.Name, second.UID = "a", "a"
	inWorld(t, []runtime.Object{budget("1"), second}, func(w *world) {
		controllertest.Events(w.events) // NoPods
		want := `Warning MultiplePodDisruptionBudgets Pod "ns"/"p" matches multiple PodDisruptionBudgets.  Chose "a" arbitrarily.`
		p, err := w.CoreV1().Pods("ns").Create(t.Context(), pod("p", corev1.ConditionTrue), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		controllertest.Equal(t, "a pod of both", controllertest.Events(w.events), want)
		for _, labels := range []map[string]string{{"app": "web", "x": "1"}, {"app": "other"}, {"app": "web"}} {
			p.Labels = labels
			if _, err := w.CoreV1().Pods("ns").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		controllertest.Equal(t, "another label, then of none, then of both", controllertest.Events(w.events), want)
	})
}

// The mark of a pod for an eviction that did not happen is removed after two minutes (W10.21),
// unless the pod ends or the node agent itself set the mark. A failed write is repeated.
func TestStaleDisruptionTargetIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		marked := func(name, reason string, change func(*corev1.Pod)) *corev1.Pod {
			p := pod(name, corev1.ConditionTrue)
			p.Generation = 3
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget,
				Status: corev1.ConditionTrue, Reason: reason, Message: "soon", LastTransitionTime: metav1.Now()})
			change(p)
			return p
		}
		nothing := func(*corev1.Pod) {}
		api := controllertest.New(
			marked("evicted", "EvictionByEvictionAPI", nothing),
			marked("kubelet", corev1.PodReasonTerminationByKubelet, nothing),
			marked("done", "EvictionByEvictionAPI", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
			marked("deleted", "EvictionByEvictionAPI", func(p *corev1.Pod) {
				now := metav1.Now()
				p.DeletionTimestamp, p.Finalizers = &now, []string{"example.com/f"}
			}))
		failed := false
		api.Before = func(verb string, _ schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "patch" && !failed {
				failed = true
				return apierrors.NewNotFound(corev1.Resource("pods"), "evicted") // of a webhook
			}
			return nil
		}
		budgets, pods := source.Budgets(api), source.Pods(api)
		c, err := New(api, record.NewFakeRecorder(100), nil, budgets, pods)
		if err != nil {
			t.Fatal(err)
		}
		controllertest.Run(t, c, budgets, pods)
		state := func() (out []string) {
			synctest.Wait()
			list, err := api.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range list.Items {
				c := list.Items[i].Status.Conditions[1]
				out = append(out, fmt.Sprint(list.Items[i].Name, " ", c.Status, " ", c.Reason, c.Message))
			}
			return out
		}
		rest := []string{"deleted True EvictionByEvictionAPIsoon", "done True EvictionByEvictionAPIsoon"}
		time.Sleep(disruption.Patience - time.Second)
		controllertest.Equal(t, "before the end", state(),
			append(rest, "evicted True EvictionByEvictionAPIsoon", "kubelet True TerminationByKubeletsoon")...)
		time.Sleep(2 * time.Second)
		controllertest.Equal(t, "at the end", state(), append(rest, "evicted False ",
			"kubelet True TerminationByKubeletsoon")...)
		time.Sleep(time.Hour)
		controllertest.Equal(t, "writes", api.Log(), "patch pods/status evicted")
	})
}

// Pods without a controller do not count for a share: no disruption is allowed, and an event gives the reason (W10.16,
// W12.37). An integer minAvailable counts them; the condition has no message (W10.19). The selector {} selects all
// pods, none selects no pod, which is an event (W10.20, W10.22).
func TestUnmanagedPods(t *testing.T) {
	share, least, all, none := budget("50%"), budget("1"), budget("1"), budget("1")
	all.Spec.Selector, none.Spec.Selector = &metav1.LabelSelector{}, nil
	for name, c := range map[string]struct {
		budget                              *policyv1.PodDisruptionBudget
		expected, healthy, desired, allowed int32
		condition, events                   string
	}{
		"share": {share, 0, 2, 0, 0, "False InsufficientPods ", "Warning UnmanagedPods Pods selected by this " +
			"PodDisruptionBudget (selector: &LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:" +
			"[]LabelSelectorRequirement{},}) were found to be unmanaged. As a result, the status of the PDB cannot " +
			"be calculated correctly, which may result in undefined behavior. To account for these pods please set " +
			"\".spec.minAvailable\" field of the PDB to an integer value."},
		"least": {least, 2, 2, 1, 1, "True SufficientPods ", ""},
		"all":   {all, 3, 3, 1, 2, "True SufficientPods ", ""},
		"none":  {none, 0, 0, 1, 0, "False InsufficientPods ", "Normal NoPods No matching pods found"},
	} {
		t.Run(name, func(t *testing.T) {
			other := pod("c", corev1.ConditionTrue)
			other.Labels = nil
			inWorld(t, []runtime.Object{c.budget, pod("a", corev1.ConditionTrue), pod("b", corev1.ConditionTrue),
				other},
				func(w *world) {
					time.Sleep(10 * time.Second)
					w.expect("the status", c.expected, c.healthy, c.desired, c.allowed)
					stored, err := w.PolicyV1().PodDisruptionBudgets("ns").Get(t.Context(), "b", metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					got := stored.Status.Conditions
					if len(got) != 1 || string(got[0].Status)+" "+got[0].Reason+" "+got[0].Message != c.condition ||
						got[0].ObservedGeneration != 1 {
						t.Errorf("conditions %+v, want %s", got, c.condition)
					}
					if events := strings.Join(controllertest.Events(w.events), "\n"); events != c.events {
						t.Errorf("events %s\nwant %s", events, c.events)
					}
				})
		})
	}
}

func TestSumOfHugeScales(t *testing.T) {
	const most = math.MaxInt32
	for _, x := range [][3]int32{{0, 0, 0}, {1, 2, 3}, {most, 0, most}, {0, most, most}, {most - 1, 2, most},
		{most, most, most}} {
		if got := plus(x[0], x[1]); got != x[2] {
			t.Errorf("%d + %d = %d, want %d", x[0], x[1], got, x[2])
		}
	}
}

// transport answers requests of a client.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The name in an owner reference does not lead to another path of the API, such as a proxy or another namespace.
func TestOwnerWithANameThatIsAPath(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		time.Sleep(10 * time.Second)
		var got []string
		client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://api"},
			&http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				got = append(got, r.URL.Path)
				return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody}, nil
			})})
		if err != nil {
			w.Fatal(err)
		}
		c := &Controller{client: client, inventory: w.inventory}
		for _, name := range []string{"../../other/configmaps/x", "..", "a/proxy/stop", "a%2fb", ""} {
			if _, err := c.replicas(w.Context(), "ns", &metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap",
				Name: name}); err == nil {
				w.Errorf("%q: no error", name)
			}
		}
		controllertest.Equal(w.T, "requests", got)
		if _, err := c.replicas(w.Context(), "ns", &metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap",
			Name: "x"}); err != nil {
			w.Error(err)
		}
		controllertest.Equal(w.T, "requests", got, "/api/v1/namespaces/ns/configmaps/x/scale",
			"/api/v1/namespaces/ns/configmaps/x")
	})
}
