package unusedclaims

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
)

func claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
}

// pod is one that has claims as volumes; it is not scheduled.
func pod(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}}})
	}
	return p
}

func run(t *testing.T, api *controllertest.API) {
	t.Helper()
	pods, claims := source.Pods(api), source.VolumeClaims(api)
	c, err := New(api, pods, claims)
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, c, pods, claims)
}

// conditions are the conditions Unused of all claims by name, with their times.
func conditions(api *controllertest.API) map[string]corev1.PersistentVolumeClaimCondition {
	all := map[string]corev1.PersistentVolumeClaimCondition{}
	for _, c := range controllertest.All[*corev1.PersistentVolumeClaim](api) {
		for _, o := range c.Status.Conditions {
			if o.Type == corev1.PersistentVolumeClaimUnused {
				all[c.Name] = o
			}
		}
	}
	return all
}

func shows(t *testing.T, api *controllertest.API, what, name, want string) {
	t.Helper()
	c := conditions(api)[name]
	if got := fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message); got != want {
		t.Errorf("%s: claim %s shows %q, want %q", what, name, got, want)
	}
}

const (
	isUnused = "True NoPodsUsingPVC No pods are currently referencing this PVC"
	isUsed   = "False PodUsingPVC A pod is currently referencing this PVC"
	none     = "  "
)

// Bound claims show whether a pod uses them, also one that is not scheduled; a pod that has ended does not, nor one
// that is being deleted and runs nothing (S7.10). Other claims show nothing. Other conditions stay.
func TestCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pending, going, kept := claim("pending"), claim("going"), claim("free")
		pending.Status.Phase = corev1.ClaimPending
		now := metav1.Now()
		going.DeletionTimestamp, going.Finalizers = &now, []string{"a/b"}
		kept.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimResizing}}
		ended := pod("ended", "done")
		ended.Status.Phase = corev1.PodSucceeded
		api := controllertest.New(pending, going, kept, claim("used"), claim("done"),
			pod("p", "used", "pending", "going"), ended)
		run(t, api)
		time.Sleep(10 * time.Second)
		for name, want := range map[string]string{"free": isUnused, "used": isUsed, "done": isUnused, "pending": none,
			"going": none} {
			shows(t, api, "at first", name, want)
		}
		controllertest.Equal(t, "writes", slices.Sorted(slices.Values(api.Log())), "update persistentvolumeclaims/status done",
			"update persistentvolumeclaims/status free", "update persistentvolumeclaims/status used")
		if c := controllertest.All[*corev1.PersistentVolumeClaim](api); len(c[1].Status.Conditions) != 2 {
			t.Errorf("claim %s has the conditions %v", c[1].Name, c[1].Status.Conditions)
		}
		before := conditions(api)["used"].LastTransitionTime
		other := pod("q", "used")
		api.Put(other)
		api.Remove(pod("p"))
		time.Sleep(10 * time.Second)
		shows(t, api, "with another pod", "used", isUsed)
		if now := conditions(api)["used"].LastTransitionTime; !now.Equal(&before) {
			t.Errorf("the transition was at %v, and is at %v", before, now)
		}
		other.DeletionTimestamp = &now
		other.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		api.Put(other)
		time.Sleep(10 * time.Second)
		shows(t, api, "while it runs", "used", isUsed)
		other.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		api.Put(other)
		time.Sleep(10 * time.Second)
		shows(t, api, "after its containers", "used", isUnused)
		if now := conditions(api)["used"].LastTransitionTime; !before.Before(&now) {
			t.Errorf("the transition was at %v, and is at %v", before, now)
		}
	})
}

// A pod that is replaced at once changes nothing.
func TestReplacedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(claim("c"), pod("p", "c"))
		run(t, api)
		time.Sleep(10 * time.Second)
		api.Log()
		api.Remove(pod("p"))
		time.Sleep(settle / 2)
		api.Put(pod("p", "c"))
		time.Sleep(10 * time.Second)
		controllertest.Equal(t, "writes", api.Log())
		shows(t, api, "in the end", "c", isUsed)
	})
}

// A pod that comes and goes while the watch is interrupted is in a list of the controller, and never in the watch.
func TestPodThatTheWatchNeverShows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(claim("c"))
		api.LateOf = func(r schema.GroupVersionResource) time.Duration {
			if r.Resource == "pods" {
				return 10 * time.Second
			}
			return 0
		}
		api.Faults = func() controllertest.Fault { return controllertest.Cut }
		run(t, api)
		api.Put(pod("p", "c"))
		time.Sleep(5 * time.Second)
		shows(t, api, "while the pod exists", "c", isUsed)
		api.Remove(pod("p"))
		time.Sleep(5 * time.Minute)
		shows(t, api, "in the end", "c", isUnused)
	})
}

// Watches that are late, deliver twice, or lose events, refused writes, and lost answers lead to the right condition in
// the end.
func TestFaults(t *testing.T) {
	for n := range 20 {
		synctest.Test(t, func(t *testing.T) {
			api := controllertest.New(claim("c"), claim("d"))
			writes := 0
			api.LateOf = func(r schema.GroupVersionResource) time.Duration {
				if (r.Resource == "pods") == (n%2 == 0) {
					return time.Duration(n) * 100 * time.Millisecond
				}
				return 0
			}
			api.Faults = func() controllertest.Fault { return controllertest.Fault((writes + n) % 3) }
			api.Before = func(string, schema.GroupVersionResource, metav1.Object) error {
				if writes++; writes%4 == n%4 {
					return apierrors.NewInternalError(errors.New("etcd is away"))
				}
				return nil
			}
			api.After = func(string, schema.GroupVersionResource, metav1.Object) error {
				if writes%5 == n%5 {
					return errors.New("connection reset")
				}
				return nil
			}
			run(t, api)
			for i := range 6 {
				api.Put(pod("p", "c"))
				time.Sleep(time.Duration(i*n) * 10 * time.Millisecond)
				api.Remove(pod("p"))
				time.Sleep(time.Duration(i+n) * 10 * time.Millisecond)
			}
			api.Put(pod("q", "d"))
			time.Sleep(10 * time.Minute)
			shows(t, api, "in the end", "c", isUnused)
			shows(t, api, "in the end", "d", isUsed)
		})
	}
}

// A webhook refuses the condition as if the claim did not exist, or as a conflict: it is written later, with growing
// waits.
func TestRefusedCondition(t *testing.T) {
	for _, refusal := range controllertest.Refusals(corev1.Resource("persistentvolumeclaims")) {
		synctest.Test(t, func(t *testing.T) {
			api := controllertest.New(claim("c"))
			end := controllertest.Refuse(api, "update", "persistentvolumeclaims", refusal)
			run(t, api)
			time.Sleep(time.Minute)
			if n := end(); n < 2 || n > controllertest.MostTries {
				t.Errorf("%v: %d attempts", refusal, n)
			}
			time.Sleep(time.Minute)
			shows(t, api, "in the end", "c", isUnused)
		})
	}
}
