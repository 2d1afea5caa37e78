package node

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"carob/internal/base/journal"
	"carob/internal/core/podlife"
	"carob/internal/node/volume"
)

// L3.40: others end with their grace, then the critical pod runs; meanwhile no other pod takes the resources.
func TestCriticalPodPreempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.ignoresStop["web"] = true
		w.start()
		defer w.stop()
		w.api.put(webPod("low-1"))
		w.api.put(webPod("low-2"))
		settle(time.Second)
		critical := webPod("critical")
		critical.Labels = map[string]string{"instead-of": "low"}
		w.api.put(critical)
		settle(time.Second)
		if v, _ := w.pods.Get("default", "critical"); v.Life != podlife.Syncing || len(v.Waits) != 1 ||
			v.Waits[0].For != "preemption" {
			t.Errorf("it does not wait: %s %v", v.Life, v.Waits)
		}
		late := webPod("late")
		late.Labels = map[string]string{"refused-beside": "critical"}
		w.api.put(late)
		settle(10 * time.Second)
		w.mustBe("low-1", corev1.PodRunning)
		w.mustBe("critical", corev1.PodPending)
		w.mustBe("late", corev1.PodFailed)
		settle(30 * time.Second)
		w.mustBe("critical", corev1.PodRunning)
		for _, name := range []string{"low-1", "low-2"} {
			w.mustBe(name, corev1.PodFailed)
			st := w.api.get(name).Status
			i := slices.IndexFunc(st.Conditions,
				func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
			if st.Reason != "Preempting" || st.Message != "Preempted in order to admit critical pod" || i < 0 ||
				st.Conditions[i].Reason != corev1.PodReasonTerminationByKubelet {
				t.Errorf("%s: %s %q %v", name, st.Reason, st.Message, st.Conditions)
			}
		}
		if !w.hasEvent("Warning Preempting: Preempted in order to admit critical pod") {
			t.Errorf("no event: %v", w.events)
		}
	})
}

// A critical pod that is deleted while it waits for room never runs.
func TestWaitingPodIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		w.runtime.ignoresStop["web"] = true
		w.api.put(webPod("low"))
		settle(time.Second)
		critical := webPod("critical")
		critical.Labels = map[string]string{"instead-of": "low"}
		w.api.put(critical)
		settle(time.Second)
		w.deleteGracefully("critical", 30)
		settle(time.Second)
		if w.api.get("critical") != nil || w.pods.Known("uid-critical") {
			t.Errorf("it is still there: %v", w.waits("uid-critical"))
		}
		settle(time.Minute)
		w.mustBe("low", corev1.PodFailed)
	})
}

// The logs are removed with the object, not after the watch event: an agent that stops in between leaves no logs that
// no later agent would find.
func TestLogsAreRemovedWithTheObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Millisecond)
		w.api.mu.Lock()
		forward := w.api.changed
		w.api.changed = func(pod *corev1.Pod, deleted bool) {
			if !deleted {
				forward(pod, false)
			}
		}
		w.api.mu.Unlock()
		w.deleteGracefully("a", 30)
		settle(time.Second)
		if w.api.get("a") != nil || !w.pods.Known("uid-a") {
			t.Fatal("the test wants a pod that is deleted and not forgotten")
		}
		if entries, err := os.ReadDir(w.logs); err != nil || len(entries) != 0 {
			t.Errorf("log directories left: %v %v", entries, err)
		}
	})
}

// A pod runs, is deleted, and is gone: terminal status stored before the delete
// (L7.40, L7.41), nothing left in the runtime, its logs removed (L3.156).
func TestLifeOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Millisecond)
		w.mustBe("a", corev1.PodRunning)
		pod := w.api.get("a")
		if pod.Status.PodIP != "10.0.0.7" || !pod.Status.ContainerStatuses[0].Ready {
			t.Errorf("status %+v", pod.Status)
		}
		for _, e := range []string{"Normal Pulled: ", "Normal Created: Container created",
			"Normal Started: Container started"} {
			if !w.hasEvent(e) {
				t.Errorf("no event %q in %v", e, w.events)
			}
		}
		w.deleteGracefully("a", 30)
		settle(time.Second)
		w.mustBeGone("a")
		log := w.api.log()
		if last := log[len(log)-1]; last != "delete grace=0 phase=Succeeded" {
			t.Errorf("writes end with %q: %v", last, log)
		}
		if entries, err := os.ReadDir(w.logs); err != nil || len(entries) != 0 {
			t.Errorf("log directories left: %v %v", entries, err)
		}
	})
}

// A webhook may refuse the deletion of a pod as NotFound, when it cannot find something itself, or as a Conflict: the
// pod is there, and is deleted later.
func TestDeletionRefusedAsDone(t *testing.T) {
	for _, refusal := range []error{apierrors.NewNotFound(corev1.Resource("policies"), "p"),
		apierrors.NewConflict(corev1.Resource("policies"), "p", errors.New("busy"))} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			defer w.stop()
			w.api.put(webPod("a"))
			settle(time.Millisecond)
			w.mustBe("a", corev1.PodRunning)
			w.api.mu.Lock()
			w.api.fail = func(verb string, _ *corev1.Pod) error {
				if verb == "delete" {
					return refusal
				}
				return nil
			}
			w.api.mu.Unlock()
			w.deleteGracefully("a", 30)
			settle(time.Minute)
			w.api.mu.Lock()
			w.api.fail = func(string, *corev1.Pod) error { return nil }
			w.api.mu.Unlock()
			settle(10 * time.Minute)
			w.mustBeGone("a")
		})
	}
}

// The work of removing a sandbox does not hold up the end of its pod, and comes also when the agent
// stops meanwhile: the next one does it.
func TestSandboxIsRemovedLater(t *testing.T) {
	for _, stops := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			defer func() { w.stop() }()
			w.api.put(webPod("a"))
			settle(time.Millisecond)
			w.mustBe("a", corev1.PodRunning)
			w.deleteGracefully("a", 30)
			settle(time.Millisecond)
			w.runtime.mu.Lock()
			left := len(w.runtime.sandboxes)
			w.runtime.mu.Unlock()
			if w.api.get("a") != nil || left != 1 {
				t.Errorf("the pod is %v and has %d sandboxes: it should be gone before its sandbox", w.api.get("a"), left)
			}
			if stops {
				w.stop()
				w.start()
			}
			settle(time.Minute)
			w.mustBeGone("a")
		})
	}
}

// A deletion aborts a pull in flight at once; upstream waits for it (L7.4, L12.25).
func TestDeletionAbortsAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.slowPull["docker.io/library/big:latest"] = time.Hour
		w.start()
		defer w.stop()
		pod := webPod("a")
		pod.Spec.Containers[0].Image = "big"
		w.api.put(pod)
		settle(time.Minute)
		w.mustBe("a", corev1.PodPending)
		if !w.hasEvent(`Pulling image "big"`) {
			t.Fatalf("events %v", w.events)
		}
		w.deleteGracefully("a", 30)
		settle(time.Second)
		w.mustBeGone("a")
	})
}

// Pods that want the same image share one pull; the pod that is deleted meanwhile
// does not end it for the other.
func TestSharedPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.slowPull["docker.io/library/big:latest"] = time.Minute
		w.start()
		defer w.stop()
		for _, name := range []string{"a", "b"} {
			pod := webPod(name)
			pod.Spec.Containers[0].Image = "big"
			w.api.put(pod)
		}
		settle(10 * time.Second)
		w.deleteGracefully("a", 30)
		settle(2 * time.Minute)
		w.mustBe("b", corev1.PodRunning)
		if n := w.runtime.count("PullImage"); n != 1 {
			t.Errorf("%d pulls", n)
		}
	})
}

// A second delete with a shorter grace takes effect at once, unlike upstream (L7.4, L11.14).
func TestShorterGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.ignoresStop["web"] = true
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Second)
		w.deleteGracefully("a", 600)
		settle(10 * time.Second)
		if len(w.runtime.running()) != 1 {
			t.Fatal("the container ended before its grace")
		}
		w.deleteGracefully("a", 1)
		settle(5 * time.Second)
		w.mustBeGone("a")
	})
}

// A pod that leaves the API without a deletion (force delete) is ended without
// any write (L7.16).
func TestForceDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Second)
		w.api.mu.Lock()
		pod := w.api.pods["a"]
		delete(w.api.pods, "a")
		w.api.mu.Unlock()
		w.pods.Remove(pod.UID)
		before := len(w.api.log())
		settle(time.Minute)
		w.mustBeGone("a")
		if log := w.api.log(); len(log) != before {
			t.Errorf("writes about a pod that is gone: %v", log[before:])
		}
	})
}

// A restarted agent takes running containers over and ends what was deleted
// meanwhile, but leaves pods of other agents alone (L7.70, L7.75, L7.17).
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		for _, name := range []string{"a", "b", "other"} {
			w.api.put(webPod(name))
		}
		settle(time.Second)
		running := w.runtime.running()
		if len(running) != 3 {
			t.Fatalf("running %v", running)
		}
		w.stop()
		writes := len(w.api.log())

		w.api.mu.Lock()
		delete(w.api.pods, "b")
		delete(w.api.pods, "other")
		w.api.mu.Unlock()
		for _, sb := range w.runtime.sandboxes {
			if sb.Metadata.Name == "other" {
				sb.Annotations["owner"] = "somebody else"
			}
		}
		w.start()
		defer w.stop()
		settle(time.Minute)
		w.mustBe("a", corev1.PodRunning)
		if rc := w.api.get("a").Status.ContainerStatuses[0].RestartCount; rc != 0 {
			t.Errorf("restart count %d", rc)
		}
		left := w.runtime.running()
		if len(left) != 2 || !slices.Contains(running, left[0]) || !slices.Contains(running, left[1]) {
			t.Errorf("running %v, before the restart %v", left, running)
		}
		if log := w.api.log(); len(log) != writes {
			t.Errorf("the restart wrote %v", log[writes:])
		}
	})
}

// A list that misses what was just started, or what the agent before had, starts
// nothing a second time.
func TestListWithAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		gap := func(is bool) {
			w.runtime.mu.Lock()
			defer w.runtime.mu.Unlock()
			w.runtime.gap = is
		}
		mustBeOne := func(when string) {
			t.Helper()
			w.mustBe("a", corev1.PodRunning)
			if n, rc := w.runtime.count("CreateContainer"),
				w.api.get("a").Status.ContainerStatuses[0].RestartCount; n != 1 || rc != 0 {
				t.Errorf("%s: %d containers made, restart count %d", when, n, rc)
			}
		}
		gap(true)
		w.start()
		w.api.put(webPod("a"))
		settle(2 * time.Minute)
		mustBeOne("after the start")
		w.stop()
		w.start()
		defer w.stop()
		settle(2 * time.Minute)
		mustBeOne("after a restart of the agent")
		gap(false)
		settle(2 * time.Minute)
		mustBeOne("without the gap")
		w.runtime.exit("web", 1)
		settle(time.Second)
		if n := w.runtime.count("CreateContainer"); n != 2 {
			t.Errorf("%d containers made after an exit", n)
		}
	})
}

// What ends while the agent is down is seen by the next one.
func TestExitWhileDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		pod := webPod("a")
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		w.api.put(pod)
		settle(time.Second)
		w.stop()
		w.runtime.exit("web", 3)
		w.start()
		defer w.stop()
		settle(time.Second)
		w.mustBe("a", corev1.PodFailed)
		if s := w.api.get("a").Status.ContainerStatuses[0].State.Terminated; s == nil || s.ExitCode != 3 {
			t.Errorf("state %+v", w.api.get("a").Status.ContainerStatuses[0].State)
		}
	})
}

// An exit is acted on at once with events, and within a second without them (L8.1); the status shows it a moment later.
func TestExitIsObserved(t *testing.T) {
	for name, within := range map[string]time.Duration{"events": time.Millisecond,
		"no events": 1100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.runtime.noEvents = name == "no events"
				w.start()
				defer w.stop()
				w.api.put(webPod("a"))
				settle(90 * time.Second)
				w.mustBe("a", corev1.PodRunning)
				w.runtime.exit("web", 1)
				settle(within)
				if n := w.runtime.count("StartContainer"); n != 2 {
					t.Errorf("%d starts of containers after %v", n, within)
				}
				settle(100 * time.Millisecond)
				if rc := w.api.get("a").Status.ContainerStatuses[0].RestartCount; rc != 1 {
					t.Errorf("restart count %d", rc)
				}
			})
		})
	}
}

// On an idle node the only call of the runtime is the slow list (principle 2).
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		for i := range 20 {
			w.api.put(webPod(fmt.Sprintf("p%d", i)))
		}
		settle(time.Minute)
		lists, looks, writes := w.runtime.count("ListContainers"), w.runtime.count("ImageStatus"), len(w.api.log())
		settle(10 * time.Minute)
		if n := w.runtime.count("ListContainers") - lists; n > 10 {
			t.Errorf("%d lists in 10 minutes", n)
		}
		if n := w.runtime.count("ImageStatus") - looks; n != 0 {
			t.Errorf("%d looks at images", n)
		}
		if n := len(w.api.log()) - writes; n != 0 {
			t.Errorf("%d writes", n)
		}
	})
}

// A pod that the node refuses fails and never runs (L3.12).
func TestRefusedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		w.api.put(webPod("refused"))
		settle(time.Second)
		w.mustBe("refused", corev1.PodFailed)
		if s := w.api.get("refused").Status; s.Reason != "OutOfcpu" || s.Message != "Pod was rejected: no cpu" {
			t.Errorf("reason %q, message %q", s.Reason, s.Message)
		}
		if n := w.runtime.count("RunPodSandbox"); n != 0 {
			t.Errorf("%d sandboxes", n)
		}
	})
}

// A pod whose volumes cannot be attached, because its node has as many as it can have, fails and never runs (L3.36).
func TestNodeIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.disk.full = fmt.Errorf("prepare: %w", &volume.Rejection{Reason: "VolumeAttachmentLimitExceeded",
			Message: "Node has reached its volume attachment limit"})
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Second)
		w.mustBe("a", corev1.PodFailed)
		if s := w.api.get("a").Status; s.Reason != "VolumeAttachmentLimitExceeded" ||
			s.Message != "Pod was rejected: Node has reached its volume attachment limit" {
			t.Errorf("reason %q, message %q", s.Reason, s.Message)
		}
		if !w.hasEvent("Warning VolumeAttachmentLimitExceeded: Node has reached its volume attachment limit") {
			t.Errorf("no event tells: %q", w.events)
		}
		if n := w.runtime.count("CreateContainer"); n != 0 {
			t.Errorf("%d containers", n)
		}
		if made, ended := w.runtime.count("RunPodSandbox"), w.runtime.count("StopPodSandbox"); made > ended {
			t.Errorf("%d sandboxes, %d ended", made, ended)
		}
	})
}

// While the runtime is down a pod waits and its status shows it; then it continues (L8.33).
func TestRuntimeOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.down = true
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Minute)
		if !w.hasEvent("FailedSync: error determining status: ") {
			t.Errorf("events %v", w.events)
		}
		w.runtime.mu.Lock()
		w.runtime.down = false
		w.runtime.mu.Unlock()
		settle(time.Minute)
		w.mustBe("a", corev1.PodRunning)
	})
}

// A stop of the agent ends every goroutine at once, whatever is in flight; the
// bubble would not end otherwise.
func TestStopInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.slowPull["docker.io/library/big:latest"] = time.Hour
		w.runtime.ignoresStop["web"] = true
		w.start()
		big := webPod("big")
		big.Spec.Containers[0].Image = "big"
		w.api.put(big)
		w.api.put(webPod("a"))
		settle(time.Second)
		w.deleteGracefully("a", 600)
		settle(time.Second)
		before := time.Now()
		w.stop()
		if took := time.Since(before); took > 0 {
			t.Errorf("stopping took %v", took)
		}
		if len(w.runtime.running()) != 1 {
			t.Error("stopping the agent stopped a container")
		}
	})
}

// An agent that stops while a container starts lets the start end by itself, but
// not for ever; a deletion aborts a start at once.
func TestStopDuringStart(t *testing.T) {
	for _, c := range []struct {
		name    string
		start   time.Duration
		deleted bool
		took    time.Duration
		running int
	}{
		{name: "quick", start: time.Second, took: 500 * time.Millisecond, running: 1},
		{name: "hanging", start: time.Hour, took: 2 * time.Second},
		{name: "deleted", start: time.Hour, deleted: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.runtime.starting = c.start
				w.start()
				w.api.put(webPod("a"))
				settle(500 * time.Millisecond)
				if c.deleted {
					w.deleteGracefully("a", 600)
					settle(100 * time.Millisecond)
				}
				before := time.Now()
				w.stop()
				if took := time.Since(before); took != c.took {
					t.Errorf("stopping took %v, want %v", took, c.took)
				}
				if n := len(w.runtime.running()); n != c.running {
					t.Errorf("%d containers run, want %d", n, c.running)
				}
				if c.running == 0 {
					return
				}
				w.start()
				settle(time.Second)
				w.mustBe("a", corev1.PodRunning)
				if n := w.api.get("a").Status.ContainerStatuses[0].RestartCount; n != 0 {
					t.Errorf("restarted %d times", n)
				}
				w.stop()
			})
		})
	}
}

// A pod with a runtime class runs on its handler, and without the class not at all.
func TestRuntimeClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		for pod, class := range map[string]*string{"default": nil, "vm": new("vm"), "gone": new("gone")} {
			p := webPod(pod)
			p.Spec.RuntimeClassName = class
			w.api.put(p)
		}
		settle(time.Second)
		w.mustBe("default", corev1.PodRunning)
		w.mustBe("vm", corev1.PodRunning)
		w.mustBe("gone", corev1.PodPending)
		if !w.hasEvent(`FailedCreatePodSandBox`) || !w.hasEvent(`runtimeclasses.node.k8s.io "gone" not found`) {
			t.Errorf("nobody was told: %v", w.events)
		}
		got := map[string]string{}
		for _, s := range w.runtime.sandboxes {
			got[s.Metadata.Name] = s.RuntimeHandler
		}
		if want := map[string]string{"default": "", "vm": "kata"}; !maps.Equal(got, want) {
			t.Errorf("handlers %v, want %v", got, want)
		}
	})
}

// While the API server is down, pods go on; the newest status is written when it
// is back, and a deletion is never finished before (L8.31).
func TestAPIOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Second)
		w.api.mu.Lock()
		w.api.fail = func(string, *corev1.Pod) error { return errors.New("connection refused") }
		w.api.mu.Unlock()
		w.runtime.exit("web", 1)
		settle(time.Minute)
		if len(w.runtime.running()) != 1 {
			t.Fatal("the container was not restarted while the API server was down")
		}
		w.deleteGracefully("a", 30)
		settle(time.Minute)
		if w.api.get("a") == nil {
			t.Fatal("the pod was deleted before its last status was stored")
		}
		w.api.mu.Lock()
		w.api.fail = func(string, *corev1.Pod) error { return nil }
		w.api.mu.Unlock()
		settle(time.Minute)
		w.mustBeGone("a")
	})
}

// The journal has each action with its cause and its end.
func TestJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Second)
		open := map[string]bool{}
		for _, e := range w.entries {
			if e.Pod != "a" || e.UID != "uid-a" {
				t.Errorf("entry about %s/%s", e.Pod, e.UID)
			}
			switch e.Kind {
			case journal.ActionBegin:
				if e.Cause == "" {
					t.Errorf("%s began without a cause", e.Key)
				}
				open[e.Key] = true
			case journal.ActionEnd:
				if !open[e.Key] {
					t.Errorf("%s ended without a begin", e.Key)
				}
				delete(open, e.Key)
			default:
			}
		}
		if len(open) != 0 {
			t.Errorf("never ended: %v", open)
		}
		if !slices.ContainsFunc(w.entries, func(e journal.Entry) bool {
			return e.Kind == journal.ActionEnd && e.Key == "start/web/0" && e.Error == ""
		}) {
			t.Errorf("no end of start/web/0 in %v", w.entries)
		}
	})
}

// L10.50: the message of a failed start has no gRPC code.
func TestStartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.refuses = status.Error(codes.Unknown, `exec: "/no/such": no such file or directory`)
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Second / 2)
		if !slices.Contains(w.events, `Warning Failed: Error: exec: "/no/such": no such file or directory`) {
			t.Errorf("events %q", w.events)
		}
	})
}
