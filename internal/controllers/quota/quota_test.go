package quota

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	ktesting "k8s.io/client-go/testing"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
)

func limit(hard map[corev1.ResourceName]string) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for name, n := range hard {
		q.Spec.Hard[name] = resource.MustParse(n)
	}
	return q
}

func pod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}}
}

// world is a controller with a fake API in virtual time; a test plays the inventory.
type world struct {
	*testing.T
	*Controller
	client *fake.Clientset
}

var (
	quotaKind = inventory.Kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("resourcequotas"),
		Namespaced: true}
	podKind = inventory.Kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("pods"), Namespaced: true}
)

func inWorld(t *testing.T, objects []runtime.Object, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		scheme := metadatafake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		client, objects := fake.NewClientset(objects...), metadatafake.NewSimpleMetadataClient(scheme)
		w := &world{T: t, client: client,
			Controller: New(client, objects, inventory.New(client.Discovery(), objects, 0))}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.Controller.Run(ctx); close(done) }()
		w.Relisted(quotaKind,
			[]*metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"}}})
		w.settle()
		test(w)
		cancel()
		<-done
	})
}

func (w *world) settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func (w *world) used(want map[corev1.ResourceName]string) {
	w.Helper()
	q, err := w.client.CoreV1().ResourceQuotas("ns").Get(w.Context(), "q", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	for name, n := range want {
		if got := q.Status.Used[name]; got.Cmp(resource.MustParse(n)) != 0 {
			w.Errorf("%s used: %s, want %s", name, got.String(), n)
		}
	}
	if len(q.Status.Used) != len(want) || len(q.Status.Hard) != len(q.Spec.Hard) {
		w.Errorf("status %v", q.Status)
	}
}

// Usage of deleted objects is released without a request.
func TestUsageIsReleased(t *testing.T) {
	inWorld(t, []runtime.Object{limit(map[corev1.ResourceName]string{"pods": "5", "requests.cpu": "2"}),
		pod("a", "100m"), pod("b", "200m")}, func(w *world) {
		w.used(map[corev1.ResourceName]string{"pods": "2", "requests.cpu": "300m"})
		if err := w.client.CoreV1().Pods("ns").Delete(w.Context(), "a", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		w.Gone(podKind, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}})
		w.settle()
		w.used(map[corev1.ResourceName]string{"pods": "1", "requests.cpu": "200m"})
	})
}

// Devices of claims count as the extended resource of their class, together with those of pods.
func TestExtendedResources(t *testing.T) {
	const gpus, name = corev1.ResourceName("requests.example.com/gpu"), "example.com/gpu"
	p := pod("p", "1")
	p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("2")
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made"}
	claim := func(name string, n int64) *resourcev1.ResourceClaim {
		return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
				{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gold",
					AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n}}}}}}
	}
	made := claim("made", 3)
	made.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", Controller: new(true)}}
	inWorld(t, []runtime.Object{limit(map[corev1.ResourceName]string{gpus: "10"}), p, made, claim("own", 4),
		&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"},
			Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new(name)}}}, func(w *world) {
		w.used(map[corev1.ResourceName]string{gpus: "7"})
	})
}

// A new quota is counted at once, because it limits nothing before it has a status; changes after that are gathered.
func TestNewQuotaIsCountedAtOnce(t *testing.T) {
	inWorld(t, []runtime.Object{limit(map[corev1.ResourceName]string{"pods": "5"}), pod("a", "100m")}, func(w *world) {
		second := limit(map[corev1.ResourceName]string{"pods": "1"})
		second.Name = "second"
		all := w.client.CoreV1().ResourceQuotas("ns")
		if _, err := all.Create(w.Context(), second, metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		hasStatus := func() bool {
			synctest.Wait() // no time passes
			q, err := all.Get(w.Context(), "second", metav1.GetOptions{})
			if err != nil {
				w.Fatal(err)
			}
			return len(q.Status.Hard) > 0
		}
		about := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "second"}}
		w.Changed(quotaKind, about)
		if !hasStatus() {
			w.Error("a new quota has no status yet")
		}
		w.client.ClearActions()
		w.Changed(quotaKind, about) // its status
		if hasStatus(); len(w.client.Actions()) != 1 {
			w.Errorf("a change is counted at once: %v", w.client.Actions())
		}
	})
}

// A namespace without a quota costs nothing.
func TestNamespaceWithoutQuota(t *testing.T) {
	inWorld(t, []runtime.Object{limit(nil)}, func(w *world) {
		w.client.ClearActions()
		w.Changed(podKind, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "p"}})
		w.settle()
		if a := w.client.Actions(); len(a) != 0 {
			w.Errorf("listed %v", a)
		}
	})
}

// A concurrent charge is not overwritten: the controller counts again.
func TestConflict(t *testing.T) {
	conflicts := 0
	inWorld(t, []runtime.Object{limit(map[corev1.ResourceName]string{"pods": "5"})}, func(w *world) {
		w.client.PrependReactor("update", "resourcequotas", func(ktesting.Action) (bool, runtime.Object, error) {
			if conflicts++; conflicts > 2 {
				return false, nil, nil
			}
			return true, nil, apierrors.NewConflict(corev1.Resource("resourcequotas"), "q", nil)
		})
		if _, err := w.client.CoreV1().Pods("ns").Create(w.Context(), pod("a", "1"),
			metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		w.Changed(podKind, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}})
		w.settle()
		w.used(map[corev1.ResourceName]string{"pods": "1"})
		if conflicts != 3 {
			w.Errorf("%d writes", conflicts)
		}
	})
}

// If a resource cannot be counted, its previous value stays.
func TestCountFails(t *testing.T) {
	inWorld(t, []runtime.Object{limit(map[corev1.ResourceName]string{"pods": "5", "services": "3"}), pod("a", "1")},
		func(w *world) {
			w.used(map[corev1.ResourceName]string{"pods": "1", "services": "0"})
			broken := true
			w.client.PrependReactor("list", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
				return broken, nil, apierrors.NewInternalError(context.DeadlineExceeded)
			})
			if _, err := w.client.CoreV1().Services("ns").Create(w.Context(),
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}},
				metav1.CreateOptions{}); err != nil {
				w.Fatal(err)
			}
			w.Changed(inventory.Kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("services")},
				&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}})
			w.settle()
			w.used(map[corev1.ResourceName]string{"pods": "1", "services": "1"})
			broken = false
		})
}

// charge adds pods to the status, as admission does before they are stored.
func (w *world) charge(pods int64) {
	w.Helper()
	all := w.client.CoreV1().ResourceQuotas("ns")
	q, err := all.Get(w.Context(), "q", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	n := q.Status.Used["pods"]
	q.Status.Used["pods"] = *resource.NewQuantity(n.Value()+pods, resource.DecimalSI)
	if _, err := all.UpdateStatus(w.Context(), q, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// A charge whose object is not stored yet is kept, also when others are counted; one whose object is never stored is
// released, also while the quota is charged all the time.
func TestChargesAreKept(t *testing.T) {
	inWorld(t, []runtime.Object{limit(map[corev1.ResourceName]string{"pods": "500"}), pod("a", "1")},
		func(w *world) {
			changed := func() {
				w.Changed(podKind, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns",
					Name: "a"}})
			}
			w.charge(2) // of which one is stored, 400 ms later
			changed()
			time.Sleep(400 * time.Millisecond)
			synctest.Wait()
			w.used(map[corev1.ResourceName]string{"pods": "3"})
			if _, err := w.client.CoreV1().Pods("ns").Create(w.Context(), pod("b", "1"),
				metav1.CreateOptions{}); err != nil {
				w.Fatal(err)
			}
			w.settle()
			w.used(map[corev1.ResourceName]string{"pods": "2"})
			for range 60 {
				w.charge(1) // never stored
				changed()
				time.Sleep(100 * time.Millisecond)
			}
			q, err := w.client.CoreV1().ResourceQuotas("ns").Get(w.Context(), "q", metav1.GetOptions{})
			if err != nil {
				w.Fatal(err)
			}
			if n := q.Status.Used["pods"]; n.Value() > 30 {
				t.Errorf("%v pods are charged although two exist", n.Value())
			}
			w.settle()
			w.used(map[corev1.ResourceName]string{"pods": "2"})
		})
}

// A webhook refuses the status as if the quota did not exist, or as a conflict: it is written later, with growing
// waits.
func TestRefusedStatus(t *testing.T) {
	for _, refusal := range controllertest.Refusals(quotas) {
		inWorld(t, []runtime.Object{limit(map[corev1.ResourceName]string{"pods": "5"})}, func(w *world) {
			var refusing atomic.Bool
			var tries atomic.Int32
			refusing.Store(true)
			w.client.PrependReactor("update", "resourcequotas", func(ktesting.Action) (bool, runtime.Object, error) {
				if !refusing.Load() {
					return false, nil, nil
				}
				tries.Add(1)
				return true, nil, refusal
			})
			if _, err := w.client.CoreV1().Pods("ns").Create(w.Context(), pod("a", "1"),
				metav1.CreateOptions{}); err != nil {
				w.Fatal(err)
			}
			w.Changed(podKind, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}})
			time.Sleep(time.Minute)
			if n := tries.Load(); n < 2 || n > controllertest.MostTries {
				w.Errorf("%v: %d attempts", refusal, n)
			}
			refusing.Store(false)
			time.Sleep(time.Minute)
			w.used(map[corev1.ResourceName]string{"pods": "1"})
		})
	}
}
