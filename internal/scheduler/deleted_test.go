package scheduler

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
)

// lateAnswers is the API, where the answers to updates come late.
type lateAnswers struct {
	kubernetes.Interface
	wrote func(metav1.Object)
}

func (l lateAnswers) CoreV1() typedcorev1.CoreV1Interface { return lateCore{l.Interface.CoreV1(), l} }

func (l lateAnswers) ResourceV1() typedresourcev1.ResourceV1Interface {
	return lateResources{l.Interface.ResourceV1(), l}
}

type lateCore struct {
	typedcorev1.CoreV1Interface
	l lateAnswers
}

func (c lateCore) PersistentVolumes() typedcorev1.PersistentVolumeInterface {
	return lateVolumes{c.CoreV1Interface.PersistentVolumes(), c.l}
}

func (c lateCore) PersistentVolumeClaims(namespace string) typedcorev1.PersistentVolumeClaimInterface {
	return lateVolumeClaims{c.CoreV1Interface.PersistentVolumeClaims(namespace), c.l}
}

type lateVolumes struct {
	typedcorev1.PersistentVolumeInterface
	l lateAnswers
}

func (v lateVolumes) Update(ctx context.Context, o *corev1.PersistentVolume, opts metav1.UpdateOptions) (
	*corev1.PersistentVolume, error) {
	out, err := v.PersistentVolumeInterface.Update(ctx, o, opts)
	if err == nil {
		v.l.wrote(o)
	}
	return out, err
}

type lateVolumeClaims struct {
	typedcorev1.PersistentVolumeClaimInterface
	l lateAnswers
}

func (v lateVolumeClaims) Update(ctx context.Context, o *corev1.PersistentVolumeClaim, opts metav1.UpdateOptions) (
	*corev1.PersistentVolumeClaim, error) {
	out, err := v.PersistentVolumeClaimInterface.Update(ctx, o, opts)
	if err == nil {
		v.l.wrote(o)
	}
	return out, err
}

type lateResources struct {
	typedresourcev1.ResourceV1Interface
	l lateAnswers
}

func (r lateResources) ResourceClaims(namespace string) typedresourcev1.ResourceClaimInterface {
	return lateClaims{r.ResourceV1Interface.ResourceClaims(namespace), r.l}
}

type lateClaims struct {
	typedresourcev1.ResourceClaimInterface
	l lateAnswers
}

func (v lateClaims) UpdateStatus(ctx context.Context, o *resourcev1.ResourceClaim, opts metav1.UpdateOptions) (
	*resourcev1.ResourceClaim, error) {
	out, err := v.ResourceClaimInterface.UpdateStatus(ctx, o, opts)
	v.l.wrote(o) // also of a refusal
	return out, err
}

// What is deleted while the answer to a write of it is on its way does not come back, and does not replace a new one of
// its name.
func TestDeletedWhileItIsWritten(t *testing.T) {
	core, next := corev1.SchemeGroupVersion, localVolume("v", "static", "n2")
	next.UID = "another"
	for _, c := range []struct {
		resource string
		add      runtime.Object
		pod      *corev1.Pod
		want     string
	}{
		{"persistentvolumeclaims", nil, mounting(pod("a", "1"), "late"), `persistentvolumeclaim "late" not found`},
		{"persistentvolumes", next, mounting(pod("a", "1"), "data"), "didn't find available persistent volumes to bind"},
		{"resourceclaims", nil, using(pod("a", "1"), "one"), ""},
	} {
		inWorld(t, []runtime.Object{node("n1", "4"), slice("n1", "gpu"), deviceClass("gpu"),
			lateClass("static", "kubernetes.io/no-provisioner"), volumeClaim("data", "static"),
			lateClass("late", "x.example.com"), volumeClaim("late", "late"), localVolume("v", "static", "n1"),
			resourceClaim("one", exactly("gpu", 1))}, func(w *world) {
			done := false
			w.wrote = func(o metav1.Object) {
				gvr := core.WithResource(c.resource)
				switch o.(type) {
				case *resourcev1.ResourceClaim:
					gvr = resourcev1.SchemeGroupVersion.WithResource(c.resource)
				case *corev1.PersistentVolume:
					if c.resource != "persistentvolumes" {
						return
					}
				}
				if done {
					return
				}
				done = true
				if err := w.client.Tracker().Delete(gvr, o.GetNamespace(), o.GetName()); err != nil {
					t.Error(err)
				}
				if c.add != nil {
					if err := w.client.Tracker().Add(c.add); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(time.Second) // the watch shows it
			}
			w.create(c.pod)
			time.Sleep(time.Minute)
			synctest.Wait()
			w.on("a", "")
			if m := w.message("a"); !done || !strings.Contains(m, c.want) {
				t.Errorf("%s: done %v, message %q, want %q", c.resource, done, m, c.want)
			}
		})
	}
}
