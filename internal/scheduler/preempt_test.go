package scheduler

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
)

// A victim that could not be marked or deleted because of a conflict, such as with many other writes or of a webhook,
// is deleted by the next attempt: the pod does not wait for ever for a pod that nothing deletes. A webhook may also
// refuse as if the victim did not exist.
func TestVictimConflicts(t *testing.T) { // L2.52
	for _, name := range []string{"patch", "delete", "patch, not found", "delete, not found"} {
		verb, _, notFound := strings.Cut(name, ", ")
		t.Run(name, func(t *testing.T) {
			low := withPriority(pod("low", "2"), 1)
			low.Spec.NodeName = "n1"
			inWorld(t, []runtime.Object{node("n1", "2"), low}, func(w *world) {
				refused := false
				w.client.PrependReactor(verb, "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
					name := ""
					switch a := a.(type) {
					case ktesting.PatchAction:
						name = a.GetName()
					case ktesting.DeleteAction:
						name = a.GetName()
					}
					if refused || name != "low" {
						return false, nil, nil
					}
					refused = true
					if notFound {
						return true, nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
					}
					return true, nil, apierrors.NewConflict(corev1.Resource("pods"), name, errors.New("try again"))
				})
				w.create(withPriority(pod("high", "2"), 1000))
				time.Sleep(time.Minute)
				w.on("high", "n1")
				if !refused {
					w.Error("nothing conflicted")
				}
			})
		})
	}
}
