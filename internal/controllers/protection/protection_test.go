package protection

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/source"
)

// A webhook refuses the removal of the finalizer as if the object did not exist, or as a conflict: it is an error,
// after which the removal is tried again with growing waits.
func TestRefusedRelease(t *testing.T) {
	deleted := func(namespace, finalizer string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: "o", UID: "u", ResourceVersion: "1",
			Finalizers: []string{finalizer}, DeletionTimestamp: new(metav1.Now())}
	}
	for _, refusal := range controllertest.Refusals(corev1.Resource("x")) {
		client := fake.NewClientset(
			&corev1.PersistentVolumeClaim{ObjectMeta: deleted("ns", "kubernetes.io/pvc-protection")},
			&corev1.PersistentVolume{ObjectMeta: deleted("", "kubernetes.io/pv-protection")},
			&storagev1.VolumeAttributesClass{ObjectMeta: deleted("", "kubernetes.io/vac-protection")})
		inv := inventory.New(nil, nil, 0)
		claims, err := Claims(client, inv, source.Pods(client))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []*Controller{claims, Volumes(client, inv), AttributesClasses(client, inv)} {
			key := "/o"
			if c == claims {
				key = "ns/o"
			}
			controllertest.FailOnce(client, "update", c.kind.Resource, refusal)
			if _, err := c.reconcile(t.Context(), key); !errors.Is(err, refusal) || len(c.waiting) != 1 {
				t.Errorf("%s: %v, want %v", c.kind, err, refusal)
			}
			if again, err := c.reconcile(t.Context(), key); err != nil || again != 0 || len(c.waiting) != 0 {
				t.Errorf("%s: %v, %v", c.kind, again, err)
			}
		}
		if n := len(controllertest.Writes(client)); n != 6 {
			t.Errorf("%d writes", n)
		}
	}
}

func TestUsesClaim(t *testing.T) {
	owner := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p-uid"}}
	plain := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
	own := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p-scratch",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner,
			corev1.SchemeGroupVersion.WithKind("Pod"))}}}
	foreign := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p-scratch"}}
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := owner.DeepCopy()
		p.Spec.NodeName = "n"
		p.Spec.Volumes = []corev1.Volume{
			{Name: "d", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}
		if change != nil {
			change(p)
		}
		return p
	}
	ended := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{}, new(int64(0))
	}
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		claim *corev1.PersistentVolumeClaim
		used  bool
	}{
		{"a running pod", pod(nil), plain, true},
		{"a pod without a node", pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), plain, false},
		{"a pod that ended", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), plain, true},
		{"its ephemeral volume", pod(nil), own, true},
		{"its ephemeral volume, when only finalizers hold it", pod(ended), own, false},
		{"another volume, when only finalizers hold it", pod(ended), plain, true},
		{"its ephemeral volume, while it ends", pod(func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{}, new(int64(30))
		}), own, true},
		{"somebody else's claim of that name", pod(nil), foreign, false},
	} {
		if got := usesClaim(c.pod, c.claim); got != c.used {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
