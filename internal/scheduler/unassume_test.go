package scheduler

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ktesting "k8s.io/client-go/testing"

	"carob/internal/core/volume"
)

// unselect ends the wait for the volume of a claim.
func (w *world) unselect(claim string) {
	w.volumeClaim(claim, func(c *corev1.PersistentVolumeClaim) {
		delete(c.Annotations, volume.SelectedNode)
		c.Annotations["other"] = "x"
	})
}

// Devices that were reserved for a pod whose volumes could not be bound are free: for the pod itself, and for others
// when it is deleted.
func TestDevicesAfterFailedVolumes(t *testing.T) {
	objects := []runtime.Object{node("n1", "4"), slice("n1", "gpu"), deviceClass("gpu"), resourceClaim("one",
		exactly("gpu", 1)), resourceClaim("two", exactly("gpu", 1)), lateClass("late", "x.example.com"),
		volumeClaim("data", "late")}
	inWorld(t, objects, func(w *world) {
		w.create(mounting(using(pod("a", "1"), "one"), "data"))
		w.on("a", "")
		w.unselect("data")
		if m := w.message("a"); !strings.Contains(m, `provisioning failed for PVC "data"`) {
			w.Fatalf("message %q", m)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if w.volumeClaim("data", nil).Annotations[volume.SelectedNode] != "n1" {
			w.Fatalf("the pod is not tried again: %s", w.message("a"))
		}
		w.create(using(pod("b", "1"), "two"))
		w.on("b", "") // the other one may still get its volume
		w.delete("a")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.on("b", "n1")
	})
}

// Devices that could not be written are free for other pods.
func TestDevicesAfterFailedWrite(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "4"), slice("n1", "gpu"), deviceClass("gpu"), resourceClaim("one",
		exactly("gpu", 1)), resourceClaim("two", exactly("gpu", 1))}, func(w *world) {
		w.client.PrependReactor("update", "resourceclaims", func(a ktesting.Action) (bool, runtime.Object, error) {
			u, _ := a.(ktesting.UpdateAction)
			c, ok := u.GetObject().(*resourcev1.ResourceClaim)
			if !ok || c.Name != "one" || u.GetSubresource() != "status" {
				return false, nil, nil
			}
			return true, nil, apierrors.NewForbidden(resourcev1.Resource("resourceclaims"), "one", errors.New("no"))
		})
		w.wrote = func(o metav1.Object) {
			if o.GetName() == "one" {
				time.Sleep(time.Second)
			}
		}
		w.create(using(pod("a", "1"), "one"))
		w.create(using(pod("b", "1"), "two"))
		if m := w.message("b"); !strings.Contains(m, "cannot allocate all claims") {
			t.Errorf("message %q", m)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.on("b", "n1")
	})
}

// A pod that waits for its volumes on a node does not wait any longer when the node is deleted.
func TestNodeGoneWhileVolumesAreBound(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "4"), lateClass("late", "x.example.com"), volumeClaim("data", "late")},
		func(w *world) {
			w.create(mounting(pod("a", "1"), "data"))
			w.on("a", "")
			if err := w.client.CoreV1().Nodes().Delete(w.Context(), "n1", metav1.DeleteOptions{}); err != nil {
				w.Fatal(err)
			}
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if m := w.message("a"); m != "no nodes available to schedule pods" {
				w.Errorf("message %q", m)
			}
		})
}

// A claim that only one pod may use is free when the binding of this pod has failed.
func TestClaimInUseByAFailedBinding(t *testing.T) {
	claim, v := volumeClaim("data", "static"), localVolume("v", "static", "n1")
	bindTo("v")(claim)
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	v.Spec.AccessModes = claim.Spec.AccessModes
	v.Spec.ClaimRef, v.Status.Phase = volume.Ref(claim), corev1.VolumeBound
	inWorld(t, []runtime.Object{node("n1", "4"), lateClass("static", "kubernetes.io/no-provisioner"), claim, v},
		func(w *world) {
			fail := make(chan struct{})
			w.bind = func(pod, _ string) error {
				if pod != "a" {
					return nil
				}
				<-fail
				return errors.New("the answer was lost")
			}
			w.create(mounting(pod("a", "1"), "data"))
			w.create(mounting(pod("b", "1"), "data"))
			if m := w.message("b"); !strings.Contains(m, "already in-use by another pod") {
				w.Fatalf("message %q", m)
			}
			close(fail)
			synctest.Wait()
			w.delete("a")
			time.Sleep(30 * time.Second)
			synctest.Wait()
			w.on("b", "n1")
		})
}

// S9.61: a claim for extended resources that an earlier process left behind without devices is deleted, and its pod is
// tried again then.
func TestExtendedClaimLeftBehind(t *testing.T) {
	class := deviceClass("gpu")
	class.Spec.ExtendedResourceName = new("example.com/gpu")
	p := pod("a", "1")
	p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	left := resourceClaim("left", exactly("gpu", 1))
	left.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	left.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "a", UID: p.UID,
		Controller: new(true)}}
	inWorld(t, []runtime.Object{node("n1", "4"), slice("n1", "gpu"), class, left}, func(w *world) {
		w.client.PrependReactor("create", "resourceclaims", func(a ktesting.Action) (bool, runtime.Object, error) {
			if c, ok := a.(ktesting.CreateAction).GetObject().(*resourcev1.ResourceClaim); ok {
				c.Name, c.UID = "made", types.UID("made") // the fake API does not support generated names
			}
			return false, nil, nil
		})
		w.create(p)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.on("a", "n1")
	})
}
