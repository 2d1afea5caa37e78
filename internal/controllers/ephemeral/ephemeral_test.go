package ephemeral

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{
			{Name: "plain", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
				VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}},
				}}}}}}}
}

func run(t *testing.T, api *controllertest.API) *record.FakeRecorder {
	t.Helper()
	events := record.NewFakeRecorder(1000)
	pods, claims := source.Pods(api), source.VolumeClaims(api)
	c, err := New(api, events, pods, claims)
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, c, pods, claims)
	return events
}

// A pod gets its own claim, again when a user deletes it, and none when the pod is being deleted (S6.1,
// S6.2); the response to the first request is lost.
func TestClaimOfPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deleted := pod("going")
		now := metav1.Now()
		deleted.DeletionTimestamp = &now
		api := controllertest.New(pod("p"), deleted)
		api.Late = func() time.Duration { return time.Second }
		lost := false
		api.After = func(verb string, _ schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "create" && !lost {
				lost = true
				return errors.New("connection reset")
			}
			return nil
		}
		events := run(t, api)
		time.Sleep(10 * time.Second)
		controllertest.Equal(t, "writes", api.Log(), "create persistentvolumeclaims p-scratch")
		controllertest.Equal(t, "events", controllertest.Events(events),
			"Warning FailedBinding ephemeral volume scratch: create PVC p-scratch: connection reset")
		claim := controllertest.All[*corev1.PersistentVolumeClaim](api)[0]
		owner := claim.OwnerReferences[0]
		if !metav1.IsControlledBy(claim, controllertest.All[*corev1.Pod](api)[1]) || owner.Kind != "Pod" ||
			owner.APIVersion != "v1" || !*owner.BlockOwnerDeletion || claim.Labels["a"] != "b" ||
			len(claim.Spec.AccessModes) != 1 {
			t.Errorf("claim %+v", claim)
		}
		api.Remove(claim)
		time.Sleep(10 * time.Second)
		controllertest.Equal(t, "after its deletion", api.Log(), "create persistentvolumeclaims p-scratch")
		controllertest.Equal(t, "events of that", controllertest.Events(events))
	})
}

// A claim of another creator is never changed; an event of the pod reports it, and the pod gets its own
// when that one is deleted (S6.3). A quota's rejection is reported and retried with growing back-off.
func TestConflictAndQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p-scratch"}}
		api := controllertest.New(pod("p"), other, pod("q"))
		full := true
		api.Before = func(_ string, gvr schema.GroupVersionResource, o metav1.Object) error {
			if full && o.GetName() == "q-scratch" {
				return apierrors.NewForbidden(gvr.GroupResource(), o.GetName(), errors.New("exceeded quota: q"))
			}
			return nil
		}
		events := run(t, api)
		time.Sleep(time.Hour)
		seen := map[string]int{}
		for _, e := range controllertest.Events(events) {
			seen[e]++
		}
		conflict := "Warning FailedBinding ephemeral volume scratch: PVC ns/p-scratch was not created for pod ns/p " +
			"(pod is not owner)"
		quota := `Warning FailedBinding ephemeral volume scratch: create PVC q-scratch: persistentvolumeclaims ` +
			`"q-scratch" is forbidden: exceeded quota: q`
		if len(seen) != 2 || seen[conflict] < 2 || seen[conflict] > 80 || seen[quota] < 2 || seen[quota] > 80 {
			t.Errorf("events of an hour: %v", seen)
		}
		controllertest.Equal(t, "writes", api.Log())
		full = false
		api.Remove(other)
		time.Sleep(2 * time.Minute)
		if log := api.Log(); len(log) != 2 {
			t.Errorf("writes %v, want a claim for both pods", log)
		}
	})
}
