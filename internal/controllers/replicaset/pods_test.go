package replicaset

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
)

// run starts the controller of ReplicaSets on an API in memory.
func run(t *testing.T, api *controllertest.API) {
	t.Helper()
	sets, pods := source.ReplicaSets(api), source.Pods(api)
	c, err := New(api, record.NewFakeRecorder(1000), sets, pods)
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, c, sets, pods)
	time.Sleep(time.Second)
}

func setOf(t *testing.T, api *controllertest.API, name string) *appsv1.ReplicaSet {
	t.Helper()
	for _, s := range controllertest.All[*appsv1.ReplicaSet](api) {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no set %s", name)
	return nil
}

// A pod that is being deleted does not count, from then on, whatever its phase (W1.13, W1.15, W12.1); nor does one that
// has ended, which stays (W1.14, W12.2). The first is counted in terminatingReplicas (W1.21). The controller never
// changes a set's own spec (W1.32).
func TestReplacement(t *testing.T) {
	for name, test := range map[string]struct {
		change      func(*corev1.Pod)
		replaced    bool
		terminating int32
	}{
		"pending":                    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, false, 0},
		"unknown":                    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }, false, 0},
		"failed":                     {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true, 0},
		"succeeded":                  {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, true, 0},
		"deleted while running":      {deleted(corev1.PodRunning), true, 1},
		"deleted while pending":      {deleted(corev1.PodPending), true, 1},
		"deleted while unknown":      {deleted(corev1.PodUnknown), true, 1},
		"deleted after it has ended": {deleted(corev1.PodFailed), true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := controllertest.New(replicaSet("web", 2, nil), pod("a", "ReplicaSet", "web", "x", time.Hour),
					pod("b", "ReplicaSet", "web", "x", time.Hour))
				run(t, api)
				controllertest.Change(api, "ns", "a", test.change)
				time.Sleep(time.Second)
				want := 2
				if test.replaced {
					want = 3
				}
				pods := controllertest.All[*corev1.Pod](api)
				if len(pods) != want {
					t.Errorf("%d pods, want %d", len(pods), want)
				}
				if !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Name == "a" }) {
					t.Error("the pod has been removed")
				}
				s := setOf(t, api, "web")
				if s.Status.Replicas != 2 || *s.Status.TerminatingReplicas != test.terminating {
					t.Errorf("%d replicas, %d terminating, want 2 and %d", s.Status.Replicas,
						*s.Status.TerminatingReplicas, test.terminating)
				}
				if *s.Spec.Replicas != 2 || s.Generation > 1 {
					t.Errorf("the spec was changed: %d replicas, generation %d", *s.Spec.Replicas, s.Generation)
				}
			})
		})
	}
}

func deleted(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = phase
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(30))
	}
}

// Two sets with the same selector each have their own pods; an orphan goes to one of them, which then has one less to
// create (W0.26, W1.33).
func TestSameSelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orphan := pod("orphan", "ReplicaSet", "one", "x", time.Hour)
		orphan.OwnerReferences = nil
		var sets []runtime.Object
		for _, name := range []string{"one", "two"} {
			s := replicaSet(name, 3, nil)
			s.Spec.Selector.MatchLabels = map[string]string{"app": "one"}
			s.Spec.Template.Labels = map[string]string{"app": "one"}
			sets = append(sets, s)
		}
		api := controllertest.New(append(sets, orphan)...)
		run(t, api)
		time.Sleep(time.Minute)
		owned := map[string]int{}
		for _, p := range controllertest.All[*corev1.Pod](api) {
			if len(p.OwnerReferences) != 1 || p.DeletionTimestamp != nil {
				t.Errorf("pod %s has the owners %v, deleted %v", p.Name, p.OwnerReferences, p.DeletionTimestamp)
				continue
			}
			owned[p.OwnerReferences[0].Name]++
		}
		if owned["one"] != 3 || owned["two"] != 3 || len(owned) != 2 {
			t.Errorf("pods by owner: %v", owned)
		}
		api.Log()
		time.Sleep(time.Hour)
		if log := api.Log(); len(log) > 0 {
			t.Errorf("they go on with %q", log)
		}
	})
}

// A quota that allows two pods: the condition has the first error, later ones do not replace it (W1.16, W12.9); scaled
// down to what there is, the set has no condition although the quota is the same (W1.24).
func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(replicaSet("web", 5, nil))
		var mu sync.Mutex
		made, failures := 0, 0
		api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
			if verb != "create" || gvr.Resource != "pods" {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if made < 2 {
				made++
				return nil
			}
			failures++
			return apierrors.NewForbidden(gvr.GroupResource(), o.GetName(), fmt.Errorf("exceeded quota %d", failures))
		}
		run(t, api)
		time.Sleep(time.Hour)
		c := setOf(t, api, "web").Status.Conditions
		if len(c) != 1 || c[0].Type != appsv1.ReplicaSetReplicaFailure || c[0].Status != corev1.ConditionTrue ||
			c[0].Reason != "FailedCreate" || !strings.HasSuffix(c[0].Message, "exceeded quota 1") || failures < 5 {
			t.Errorf("after %d failures: %+v", failures, c)
		}
		controllertest.Change(api, "ns", "web", func(s *appsv1.ReplicaSet) { s.Spec.Replicas = new(int32(2)) })
		time.Sleep(time.Minute)
		if s := setOf(t, api, "web").Status; len(s.Conditions) != 0 || s.Replicas != 2 {
			t.Errorf("scaled down to the quota: %+v", s)
		}
	})
}

// Pods that a node refuses are replaced with growing back-off, and those of the template that it takes at once: a
// template that names a node where its pods do not fit is no busy loop.
func TestRefusedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(replicaSet("web", 2, nil))
		refuses, refused := true, 0
		node := func(until time.Duration) {
			for end := time.Now().Add(until); time.Now().Before(end); time.Sleep(250 * time.Millisecond) {
				for _, p := range controllertest.All[*corev1.Pod](api) {
					if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodRunning {
						continue
					}
					status := corev1.PodStatus{Phase: corev1.PodRunning}
					if refuses {
						refused++
						status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}
					}
					controllertest.Change(api, "ns", p.Name, func(p *corev1.Pod) { p.Status = status })
				}
			}
		}
		running := func() int {
			return len(slices.DeleteFunc(controllertest.All[*corev1.Pod](api), func(p *corev1.Pod) bool {
				return p.Status.Phase != corev1.PodRunning
			}))
		}
		run(t, api)
		node(20 * time.Minute)
		if refused < 2*20 || refused > 2*30 { // 1 s, 2 s … 1 min
			t.Errorf("%d pods refused in 20 minutes", refused)
		}
		refuses = false
		if node(time.Minute); running() != 2 {
			t.Errorf("%d pods run a minute after the node takes them", running())
		}
		// That one of them ends is no refusal, and the next ones are the first of a new back-off.
		refuses, refused = true, 0
		for _, p := range controllertest.All[*corev1.Pod](api) {
			if p.Status.Phase == corev1.PodRunning {
				controllertest.Change(api, "ns", p.Name, func(p *corev1.Pod) {
					p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted",
						ContainerStatuses: []corev1.ContainerStatus{{ContainerID: "c"}}}
				})
				break
			}
		}
		if node(10 * time.Second); refused < 3 || refused > 6 { // at once, after 1 s, 2 s, 4 s
			t.Errorf("%d pods refused in ten seconds", refused)
		}
	})
}
