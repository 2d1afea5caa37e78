package pods

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/podlife"
)

// New pods wait, in the order of arrival, for the resources of pods that are gone from the API server. A pod that would
// not fit beside the remaining ones is refused at once.
func TestRoomOfPodsThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.Update("api", pod("a", 2))
		w.are("a runs")
		w.Remove("a")
		w.Update("api", pod("b", 2))
		w.Update("api", pod("c", 1))
		w.Update("api", pod("d", 1))
		w.are("a is gone; b waits for room of ns/a (a); c waits for room of ns/a (a); d is refused")
		w.end("a")
		w.are("a is gone; b runs; c runs; d is refused")
		if w.Known("a") {
			t.Error("a pod of which nothing is left is not forgotten")
		}
	})
}

// When the agent starts, pods that the runtime has and the API server not use resources until they have ended: others
// wait for them, whether these come before or after it is known that they are gone (L7.17).
func TestRoomAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.Found([]*corev1.Pod{pod("old", 2), pod("a", 1)})
		w.Sync("api", []*corev1.Pod{pod("a", 1), pod("b", 2)})
		w.are("a runs; b waits for room of ns/old (old)")
		w.Adopt()
		w.are("a runs; b waits for room of ns/old (old); old is gone")
		w.Orphan(pod("old", 2)) // the runtime is listed once more
		w.end("old")
		w.are("a runs; b runs; old is gone")
	})
}

// After a restart, a running pod is admitted with what the node had granted it: one whose resize was deferred, or whose
// spec changed while the agent was away, is not refused, and takes no more room from others (L3.10).
func TestResizedPodAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cpus := func(n int64) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(n, resource.DecimalSI)}
		}
		running := func(name string, requests, granted int64) *corev1.Pod {
			p := pod(name, 0)
			p.Generation = 2
			p.Spec.Containers = []corev1.Container{{Name: "c",
				Resources: corev1.ResourceRequirements{Requests: cpus(requests)}}}
			p.Status.Phase, p.Status.ObservedGeneration = corev1.PodRunning, 1
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: cpus(granted),
				Resources: &corev1.ResourceRequirements{Requests: cpus(granted)}}}
			return p
		}
		w := newWorld(t, 3)
		var recovered *corev1.Pod
		w.cfg.Machine.Recover = func(p *corev1.Pod, _ podlife.Observed) podlife.State {
			if p.Name == "deferred" {
				recovered = p
			}
			return podlife.State{Last: *p.Status.DeepCopy()}
		}
		deferred := running("deferred", 4, 1)
		deferred.Status.ObservedGeneration = 2
		deferred.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
			Reason: corev1.PodReasonDeferred, ObservedGeneration: 2}}
		w.Sync("api", []*corev1.Pod{deferred, running("changed", 2, 1), running("same", 1, 1)})
		w.are("changed runs; deferred runs; same runs")
		if recovered == nil || recovered.Generation != 1 || size(recovered) != 1 {
			t.Errorf("recovered as %+v", recovered)
		}
		w.Update("api", running("new", 1, 1))
		w.are("changed runs; deferred runs; new is refused; same runs")
	})
}

// What a resized pod occupies is in its newest status, whether or not the API server has it: when the resize has ended,
// the pods that wait for the resources get them at once (L3.123, L3.127a).
func TestResizedPodOccupiesItsNewestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.script("a", func(in podlife.Input) podlife.Output {
			return podlife.Output{Life: podlife.Syncing, Allocated: in.Pod,
				Status: corev1.PodStatus{Phase: corev1.PodRunning, Message: "newest"}}
		})
		a := pod("a", 1)
		a.Generation, a.Status.Message = 2, "of the API server"
		w.Update("api", a)
		w.are("a runs")
		w.Manager.mu.Lock()
		defer w.Manager.mu.Unlock()
		if got := w.active(""); len(got) != 1 || got[0].Status.Message != "newest" || a.Status.Message == "newest" {
			t.Errorf("it occupies %+v", got)
		}
	})
}

// A pod that the API server has but cannot read is not ended, whether the agent had it or found it in the runtime; when
// it is gone, it is (L7.17).
func TestUnreadablePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		w.Found([]*corev1.Pod{pod("old", 1), pod("found", 1), pod("had", 1)})
		unreadable := []types.NamespacedName{{Namespace: "ns", Name: "found"}}
		w.Unreadable(unreadable)
		w.Sync("api", []*corev1.Pod{pod("had", 1)})
		w.Adopt()
		w.are("had runs; old is gone")
		w.Orphan(pod("found", 1)) // the runtime is listed once more
		w.Orphan(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "nameless"}})
		w.are("had runs; old is gone")
		w.Unreadable(append(unreadable, types.NamespacedName{Namespace: "ns", Name: "had"}))
		w.Sync("api", nil)
		w.are("had runs; old is gone")
		w.Unreadable(nil)
		w.Sync("api", []*corev1.Pod{pod("had", 1)})
		w.are("found is gone; had runs; old is gone")
	})
}

// A pod that was found and comes late, here a static pod, stays: who waited for it does not fit.
func TestFoundPodsComeLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.Found([]*corev1.Pod{pod("static", 2), pod("a", 1)})
		w.Update("file", pod("early", 1))
		w.are("early waits for room of ns/a (a), ns/static (static)")
		w.Sync("api", []*corev1.Pod{pod("a", 1), pod("b", 1)})
		w.are("a runs; b waits for room of ns/static (static); early waits for room of ns/static (static)")
		w.Update("file", pod("static", 2))
		w.Adopt()
		w.are("a runs; b is refused; early is refused; static runs")
	})
}

// A pod that waits has its place: later ones do not take it. When it is deleted, they do.
func TestWaitingInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.Update("api", pod("a", 3))
		w.are("a runs")
		w.Remove("a")
		b := pod("b", 2)
		w.Update("api", b)
		w.Update("api", pod("c", 1))
		w.are("a is gone; b waits for room of ns/a (a); c waits for room of ns/a (a)")
		w.Update("api", deleted(b))
		w.are("a is gone; b runs; c waits for room of ns/a (a)") // b ends; it waits no more
		w.end("a")
		w.are("a is gone; b runs; c runs")
	})
}

// Of two that wait the first one has the room that is made, as far as it goes.
func TestFirstWaitsLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		w.Update("api", pod("a", 2))
		w.Update("api", pod("x", 2))
		w.are("a runs; x runs")
		w.Remove("a")
		w.Remove("x")
		w.Update("api", pod("b", 2))
		w.Update("api", pod("c", 2))
		w.are("a is gone; b waits for room of ns/a (a), ns/x (x); c waits for room of ns/a (a), ns/x (x); x is gone")
		w.end("x")
		w.are("a is gone; b runs; c waits for room of ns/a (a); x is gone")
		w.end("a")
		w.are("a is gone; b runs; c runs; x is gone")
	})
}

// The end of others is requested once for a pod, whatever else makes room meanwhile, and the pod
// waits for just these (L3.40).
func TestPreemptionIsRequestedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.Update("api", pod("a", 1))
		w.Update("api", pod("b", 1))
		w.Update("api", pod("c", 1))
		w.are("a runs; b runs; c runs")
		w.Update("api", pod("p", 2, "instead-of", "a"))
		w.are("a ends: Preempting; b runs; c runs; p waits for preemption of ns/a (a)")
		w.Remove("b")
		w.end("b")
		w.are("a ends: Preempting; b is gone; c runs; p waits for preemption of ns/a (a)")
		if got := w.take(&w.events); !slices.Equal(got, []string{"a Preempting"}) {
			t.Errorf("events %q", got)
		}
		w.end("a")
		w.are("a ends: Preempting; b is gone; c runs; p runs")
		if in := w.inputs["a"]; in.Stop.Condition == nil || in.Stop.Condition.Type != corev1.DisruptionTarget {
			t.Errorf("told %+v", in.Stop)
		}
	})
}

// A pod that ends is not admitted again, and pods that were rejected or have ended do not count.
func TestEndedPodsAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.script("refused", func(podlife.Input) podlife.Output { // its status shows it later
			return podlife.Output{Life: podlife.Terminating, Status: corev1.PodStatus{Phase: corev1.PodPending}}
		})
		w.Update("api", pod("refused", 3))
		over := pod("over", 2)
		over.Status.Phase = corev1.PodSucceeded
		w.script("over", func(podlife.Input) podlife.Output {
			return podlife.Output{Life: podlife.Terminated, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
		})
		w.Update("api", over)
		synctest.Wait()
		w.Update("api", deleted(pod("ending", 5))) // it ran before the agent
		synctest.Wait()
		w.Update("api", pod("small", 2))
		w.are("ending runs; over runs; refused is refused; small is refused")
		w.Update("api", deleted(pod("ending", 5)))
		w.Remove("ending")
		w.end("ending")
		w.Update("api", pod("next", 2))
		w.are("ending is gone; next runs; over runs; refused is refused; small is refused")
	})
}

// The pods of a source come in the order of their creation; what is missing is gone (L3.4).
func TestSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		young, old := pod("young", 1), pod("old", 1)
		young.CreationTimestamp, old.CreationTimestamp = metav1.Unix(2000, 0), metav1.Unix(1000, 0)
		w.Update("file", pod("static", 0))
		w.Sync("api", []*corev1.Pod{young, old})
		w.are("old runs; static runs; young is refused")
		w.Sync("api", []*corev1.Pod{young})
		w.are("old is gone; static runs; young is refused")
	})
}

// Two resizes that are requested at once never get the same room: a grant counts from the
// moment on when it is given, until the pod's owner works with it or the spec moved on.
func TestResizeClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		a, b := pod("a", 1), pod("b", 1)
		w.Update("api", a)
		w.Update("api", b)
		synctest.Wait()
		larger := func(p *corev1.Pod) *corev1.Pod {
			return edited(p, func(c *corev1.Pod) { c.Labels["size"] = "3" })
		}
		keep := func(p *corev1.Pod) func(podlife.Input) podlife.Output { // the owner has not taken it over
			return func(podlife.Input) podlife.Output {
				return podlife.Output{Life: podlife.Syncing, Status: corev1.PodStatus{Phase: corev1.PodRunning},
					Allocated: p}
			}
		}
		w.script("a", keep(a))
		w.script("b", keep(b))
		a3, b3 := larger(a), larger(b)
		w.Update("api", a3)
		w.Update("api", b3)
		synctest.Wait()
		if r := w.admitResize(a3); r.Err != nil {
			t.Fatalf("there is room: %+v", r.Err)
		}
		if r := w.admitResize(b3); r.Err == nil || r.Err.Reason != "OutOfroom" || r.Err.Permanent {
			t.Errorf("the room was given away: %+v", r.Err)
		}
		w.Update("api", larger(a3)) // the claim is for a spec that is no more
		synctest.Wait()
		if r := w.admitResize(b3); r.Err != nil {
			t.Errorf("a claim of an older spec counts: %+v", r.Err)
		}
		w.script("b", nil) // its owner works with what was granted
		w.Changed("b")
		synctest.Wait()
		if r := w.admitResize(a3); r.Err == nil {
			t.Error("what an owner works with does not count")
		}
		if r := w.admitResize(pod("unknown", 1)); r.Err == nil || r.Err.Reason != podlife.Aborted {
			t.Errorf("a pod that is not here: %+v", r.Err)
		}
	})
}

// Room that becomes free is given to waiting resizes: their pods get a new Step with a later Vacated (L3.123).
func TestRoomForResizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		a, b := pod("a", 1), pod("b", 3)
		w.Update("api", a)
		w.Update("api", b)
		synctest.Wait()
		larger := edited(a, func(c *corev1.Pod) { c.Labels["size"] = "4" })
		var vacated []int64
		w.script("a", func(in podlife.Input) podlife.Output {
			vacated = append(vacated, in.Node.Vacated)
			st := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodResizePending, Reason: corev1.PodReasonDeferred,
					LastTransitionTime: metav1.NewTime(time.Now())},
			}}
			return podlife.Output{Life: podlife.Syncing, Status: st, Allocated: a,
				Waits: []podlife.Wait{{For: "resize"}}}
		})
		w.Update("api", larger)
		synctest.Wait()
		if r := w.admitResize(larger); r.Err == nil {
			t.Fatal("there is no room")
		}
		before := len(vacated)
		w.Remove("b")
		w.end("b")
		if len(vacated) == before || vacated[len(vacated)-1] <= vacated[0] {
			t.Errorf("who waits for a resize is not told of room: %v", vacated)
		}
		w.Update("api", pod("c", 1))
		w.are("a runs; b is gone; c is refused") // the room is a's
	})
}

// What only one pod can have waits for those that are still ending, and is rejected only if no pod will free it. A
// resize that is impossible is reported at once (S10.10).
func TestPinning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 9)
		var mu sync.Mutex
		owner := types.UID("")
		w.cfg.Pin = func(p *corev1.Pod) *podlife.Rejection {
			mu.Lock()
			defer mu.Unlock()
			if owner != "" && owner != p.UID {
				return &podlife.Rejection{Reason: "UnexpectedAdmissionError", Message: "taken"}
			}
			owner = p.UID
			return nil
		}
		w.cfg.Infeasible = func(p, _ *corev1.Pod) string { return "pinned " + p.Name }
		w.Update("api", pod("a", 1))
		w.Update("api", pod("b", 1))
		w.are("a runs; b is refused")
		w.Remove("a")
		w.Update("api", pod("c", 1))
		w.are("a is gone; b is refused; c waits for room of ns/a (a)")
		mu.Lock()
		owner = ""
		mu.Unlock()
		w.end("a")
		w.are("a is gone; b is refused; c runs")
		if r := w.admitResize(pod("c", 1)); r.Err == nil || !r.Err.Permanent || r.Err.Message != "pinned c" {
			t.Errorf("resize: %+v", r.Err)
		}
	})
}
