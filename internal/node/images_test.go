package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/node/spec"
)

const webImage = "docker.io/library/web:latest"

// bring makes an image appear on the machine, or go.
func (w *world) bring(here bool) {
	w.runtime.mu.Lock()
	w.runtime.images[webImage] = here
	w.runtime.mu.Unlock()
	w.imagesChanged()
}

func (w *world) waitingFor(name string) string {
	st := w.api.get(name).Status.ContainerStatuses
	if len(st) != 1 || st[0].State.Waiting == nil {
		return ""
	}
	return st[0].State.Waiting.Reason
}

// An image that arrives while a container waits for it is used: at once after ImagesChanged, else at the next check;
// also when it arrives late, is removed, and arrives twice. While it never arrives, the status shows it, and there are
// no further checks (L3.103, L3.104, L3.113).
func TestImageArrivesLater(t *testing.T) {
	for _, policy := range []corev1.PullPolicy{corev1.PullNever, corev1.PullIfNotPresent} {
		for _, unnotified := range []bool{false, true} {
			name := string(policy) + " notified"
			if unnotified {
				name = string(policy) + " not notified"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.ignoresSignals, w.runtime.away = unnotified, true
					w.runtime.images[webImage] = false
					w.start()
					defer w.stop()
					pod := webPod("a")
					pod.Spec.Containers[0].ImagePullPolicy = policy
					w.api.put(pod)
					settle(time.Hour) // never
					w.mustBe("a", corev1.PodPending)
					reason := w.waitingFor("a")
					if want := map[corev1.PullPolicy]string{corev1.PullNever: "ErrImageNeverPull",
						corev1.PullIfNotPresent: "ImagePullBackOff"}[policy]; reason != want {
						t.Errorf("waits because of %s", reason)
					}
					looks := w.runtime.count("ImageStatus")
					settle(time.Hour)
					if n := w.runtime.count("ImageStatus") - looks; n > 3600/10+20 {
						t.Errorf("%d looks in an hour", n)
					}
					within := time.Second
					if unnotified {
						within = 11 * time.Second
					}
					w.bring(true)
					settle(within)
					w.mustBe("a", corev1.PodRunning)
					pulls := w.runtime.count("PullImage")

					w.bring(false) // twice: the next instance waits again
					w.runtime.exit("web", 1)
					settle(time.Minute)
					if reason := w.waitingFor("a"); !strings.Contains("ErrImageNeverPull ImagePullBackOff", reason) ||
						reason == "" {
						t.Errorf("waits because of %q", reason)
					}
					w.bring(true)
					settle(within)
					w.mustBe("a", corev1.PodRunning)
					if w.waitingFor("a") != "" {
						t.Errorf("it still waits: %s", w.waitingFor("a"))
					}
					if policy == corev1.PullNever && pulls+w.runtime.count("PullImage") > 0 {
						t.Error("it was pulled")
					}
				})
			})
		}
	}
}

// The pull of one pod ends the back-off of another pod with the same image (L3.113).
func TestPullOfAnotherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.runtime.away, w.runtime.images[webImage] = true, false
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Hour)
		w.runtime.mu.Lock()
		w.runtime.away = false
		w.runtime.mu.Unlock()
		w.api.put(webPod("b"))
		settle(time.Second)
		w.mustBe("b", corev1.PodRunning)
		w.mustBe("a", corev1.PodRunning)
		if n := w.runtime.count("StartContainer"); n != 2 {
			t.Errorf("%d starts", n)
		}
	})
}

// An agent that finds nothing of a container but its logs goes on counting (L3.88).
func TestCountsFromLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		dir := filepath.Join(spec.PodLogDir(w.logs, webPod("a")), "web")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "4.log"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.start()
		defer w.stop()
		w.api.put(webPod("a"))
		settle(time.Second)
		w.mustBe("a", corev1.PodRunning)
		if n := w.api.get("a").Status.ContainerStatuses[0].RestartCount; n != 5 {
			t.Errorf("restart count %d", n)
		}
	})
}
