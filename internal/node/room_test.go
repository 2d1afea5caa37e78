package node

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/journal"
)

// forceDelete takes a pod out of the API without a word to its agent but that it is gone.
func (w *world) forceDelete(name string) {
	w.api.mu.Lock()
	pod := w.api.pods[name]
	delete(w.api.pods, name)
	w.api.mu.Unlock()
	w.pods.Remove(pod.UID)
}

// successor is a pod of the same name that has no room beside the others of it.
func successor(name, uid string) *corev1.Pod {
	pod := webPod(name)
	pod.UID = types.UID(uid)
	pod.Labels = map[string]string{"refused-beside": name}
	return pod
}

func (w *world) journalHas(uid types.UID, kind journal.Kind, key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.entries,
		func(e journal.Entry) bool { return e.UID == string(uid) && e.Kind == kind && e.Key == key })
}

// A pod that was deleted by force uses its resources until its containers have ended. A new pod of the same name waits
// for that, its status shows it, and then it runs; it never fails.
func TestRecreatedPodWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.ignoresStop["web"] = true // ends when its grace of 30 s is over
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Second)
		w.forceDelete("a")
		w.api.put(successor("a", "uid-2"))
		settle(10 * time.Second)
		w.mustBe("a", corev1.PodPending)
		if waits := w.waits("uid-2"); len(waits) != 1 || waits[0].For != "room" ||
			!strings.Contains(waits[0].Object, "uid-a") {
			t.Errorf("waits %v", waits)
		}
		if !slices.ContainsFunc(w.api.get("a").Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReadyToStartContainers && strings.Contains(c.Message, "default/a (uid-a)")
		}) {
			t.Errorf("the status does not say what it waits for: %v", w.api.get("a").Status.Conditions)
		}
		if !w.hasEvent("Normal WaitingForRoom: Waits until these have ended: default/a (uid-a) (no cpu)") ||
			!w.journalHas("uid-2", journal.Wait, "room") {
			t.Errorf("events %v", w.events)
		}
		if n := w.runtime.count("RunPodSandbox"); n != 1 {
			t.Errorf("%d sandboxes", n)
		}
		settle(30 * time.Second)
		w.mustBe("a", corev1.PodRunning)
	})
}

// Twice: the second one is deleted by force while it waits, the third waits for the
// first alone. Never: the first does not end. The third does not fail, and can be deleted.
func TestRecreatedPodWaitsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.ignoresStop["web"] = true
		w.start()
		defer w.stop()
		endless := webPod("a")
		endless.Spec.TerminationGracePeriodSeconds = new(int64(1e6))
		w.api.put(endless)
		settle(time.Second)
		w.forceDelete("a")
		w.api.put(successor("a", "uid-2"))
		settle(time.Second)
		w.forceDelete("a")
		settle(time.Second)
		if w.pods.Known("uid-2") {
			t.Error("the second one is not forgotten")
		}
		w.api.put(successor("a", "uid-3"))
		settle(24 * time.Hour)
		w.mustBe("a", corev1.PodPending)
		if waits := w.waits("uid-3"); len(waits) != 1 || strings.Contains(waits[0].Object, "uid-2") {
			t.Errorf("waits %v", waits)
		}
		other := webPod("other") // the scheduler counts the one that waits; so does the agent
		other.Labels = map[string]string{"refused-beside": "a"}
		w.api.put(other)
		settle(time.Second)
		w.mustBe("other", corev1.PodFailed)
		w.deleteGracefully("a", 30)
		settle(time.Second)
		if w.api.get("a") != nil || w.pods.Known("uid-3") {
			t.Errorf("it is still there: %v", w.waits("uid-3"))
		}
	})
}

// Pods that wait for resources get them in the order of arrival; a pod that does not fit beside the remaining ones is
// refused.
func TestRoomInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.ignoresStop["web"] = true
		w.start()
		defer w.stop()
		w.api.put(webPod("old"))
		w.api.put(webPod("stays"))
		settle(time.Second)
		w.forceDelete("old")
		first, second, refused := webPod("first"), webPod("second"), webPod("third")
		first.Labels = map[string]string{"refused-beside": "old"}
		second.Labels = map[string]string{"refused-beside": "old"}
		refused.Labels = map[string]string{"refused-beside": "stays"}
		for _, p := range []*corev1.Pod{first, second, refused} {
			w.api.put(p)
		}
		settle(time.Second)
		w.mustBe("first", corev1.PodPending)
		w.mustBe("second", corev1.PodPending)
		w.mustBe("third", corev1.PodFailed)
		settle(time.Minute)
		w.mustBe("first", corev1.PodRunning)
		w.mustBe("second", corev1.PodRunning)
	})
}
