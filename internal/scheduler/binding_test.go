package scheduler

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestBindingFailureBacksOff(t *testing.T) { // L2.3, L2.42
	inWorld(t, []runtime.Object{node("n1", "4")}, func(w *world) {
		var tries []time.Time
		w.bind = func(string, string) error {
			if tries = append(tries, time.Now()); len(tries) < 4 {
				return errors.New("boom")
			}
			return nil
		}
		began := time.Now()
		w.create(pod("a", "1"))
		if c := w.condition("a", corev1.PodScheduled); c.Reason != "SchedulerError" ||
			!strings.Contains(c.Message, "boom") {
			w.Errorf("condition %+v", c)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		w.on("a", "n1")
		for i, want := range []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second} {
			if got := tries[i].Sub(began); got < want || got > want+time.Second {
				w.Errorf("try %d after %v, want %v, rounded up to a second", i, got, want)
			}
		}
	})
}

// A pod that does not exist is not reported; one that a webhook refuses to bind as if it did not exist is tried again.
func TestBindingNotFound(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "4")}, func(w *world) {
		tries := map[string]int{}
		w.bind = func(pod, _ string) error {
			if tries[pod]++; pod == "deleted" || tries[pod] < 3 {
				return apierrors.NewNotFound(corev1.Resource("pods"), pod)
			}
			return nil
		}
		w.create(pod("deleted", "1"))
		if c := w.condition("deleted", corev1.PodScheduled); c != (corev1.PodCondition{}) {
			w.Errorf("condition %+v", c)
		}
		w.delete("deleted")
		w.create(pod("refused", "1"))
		time.Sleep(time.Minute)
		synctest.Wait()
		w.on("refused", "n1")
		if tries["deleted"] != 1 || tries["refused"] != 3 {
			w.Errorf("tries %v", tries)
		}
	})
}

// A pod begins to end, with a finalizer, or changes while its binding is in flight, which then fails: a pod that ends
// is not tried again, and one that changed is tried as it is now.
func TestChangesWhileBinding(t *testing.T) {
	change := map[string]func(*corev1.Pod){
		"ends":    func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = new(metav1.Now()), []string{"x/y"} },
		"changes": func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"to": "n2"} },
	}
	for name, f := range change {
		t.Run(name, func(t *testing.T) {
			other := node("n2", "4")
			other.Labels = map[string]string{"to": "n2"}
			other.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectPreferNoSchedule}}
			inWorld(t, []runtime.Object{node("n1", "4"), other}, func(w *world) {
				tries, release := 0, make(chan struct{})
				w.bind = func(_, node string) error {
					switch tries++; tries {
					case 1:
						return errors.New("boom") // its report does not change with the next
					case 2:
						<-release
						return errors.New("boom")
					}
					if node != "n2" {
						return errors.New("boom")
					}
					return nil
				}
				w.create(pod("a", "1"))
				time.Sleep(3 * time.Second)
				p := w.pod("a")
				f(p)
				w.update(p)
				close(release)
				time.Sleep(time.Minute)
				synctest.Wait()
				if name == "ends" {
					if w.on("a", ""); tries != 2 {
						w.Errorf("a pod that ends was tried %d times", tries)
					}
					return
				}
				w.on("a", "n2")
			})
		})
	}
}
