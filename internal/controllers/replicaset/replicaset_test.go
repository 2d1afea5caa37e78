package replicaset

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
)

func reference(kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(name + "-uid"),
		Controller: new(true)}}
}

// pod returns a pod that has been ready for some time.
func pod(name, kind, owner, node string, ready time.Duration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
			Labels: map[string]string{"app": owner}, OwnerReferences: reference(kind, owner)},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
			Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-ready))}}},
	}
}

func replicaSet(name string, replicas int32, owners []metav1.OwnerReference) *appsv1.ReplicaSet {
	labels := map[string]string{"app": name}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"),
			OwnerReferences: owners},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}},
	}
}

// Which pod is deleted first when a set is scaled down by one (W0.53): the sets of one Deployment count their
// pods on a node together; sets without a controller, and replication controllers, do not, as upstream's
// ActivePodsWithRanks gets no related pods for them. Then the pod that became ready last is deleted.
func TestCrowdedNodes(t *testing.T) {
	const rs, rc = "ReplicaSet", "ReplicationController"
	for name, test := range map[string]struct {
		objects func() []runtime.Object
		want    string
	}{
		"beside a sibling's pod": {func() []runtime.Object {
			return []runtime.Object{replicaSet("new", 1, reference("Deployment", "d")),
				replicaSet("old", 1, reference("Deployment", "d")),
				pod("old-1", rs, "old", "x", time.Hour),
				pod("on-x", rs, "new", "x", time.Hour), pod("on-y", rs, "new", "y", time.Minute)}
		}, "on-x"},
		"beside a stranger's pod": {func() []runtime.Object {
			return []runtime.Object{replicaSet("new", 1, reference("Deployment", "d")),
				replicaSet("old", 1, reference("Deployment", "other")),
				pod("old-1", rs, "old", "x", time.Hour),
				pod("on-x", rs, "new", "x", time.Hour), pod("on-y", rs, "new", "y", time.Minute)}
		}, "on-y"},
		"beside its own, a Deployment's": {func() []runtime.Object {
			return []runtime.Object{replicaSet("new", 2, reference("Deployment", "d")),
				pod("on-x1", rs, "new", "x", 2*time.Hour), pod("on-x2", rs, "new", "x", 9*time.Hour),
				pod("on-y", rs, "new", "y", time.Minute)}
		}, "on-x1"},
		"beside its own, nobody's": {func() []runtime.Object {
			return []runtime.Object{replicaSet("new", 2, nil), pod("on-x1", rs, "new", "x", 2*time.Hour),
				pod("on-x2", rs, "new", "x", 9*time.Hour), pod("on-y", rs, "new", "y", time.Minute)}
		}, "on-y"},
		"a replication controller": {func() []runtime.Object {
			return []runtime.Object{&corev1.ReplicationController{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c-uid"},
				Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(2)), Selector: map[string]string{"app": "c"},
					Template: &corev1.PodTemplateSpec{}}},
				pod("on-x1", rc, "c", "x", 2*time.Hour), pod("on-x2", rc, "c", "x", 9*time.Hour),
				pod("on-y", rc, "c", "y", time.Minute)}
		}, "on-y"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := controllertest.New(test.objects()...)
				sets, controllers, pods := source.ReplicaSets(api), source.ReplicationControllers(api), source.Pods(api)
				events := record.NewFakeRecorder(100)
				a, err := New(api, events, sets, pods)
				if err != nil {
					t.Fatal(err)
				}
				b, err := NewForReplicationControllers(api, events, controllers, pods)
				if err != nil {
					t.Fatal(err)
				}
				controllertest.Run(t, a, sets, pods)
				controllertest.Run(t, b, controllers)
				time.Sleep(time.Minute)
				var deleted []string
				for _, p := range controllertest.All[*corev1.Pod](api) {
					if p.DeletionTimestamp != nil {
						deleted = append(deleted, p.Name)
					}
				}
				controllertest.Equal(t, "deleted", deleted, test.want)
			})
		})
	}
}

// W1.11: a set that creates or deletes all its pods at once stores its status when the watch shows that, not before: a
// status leads to one of its Deployment. If it could not do all, it stores that at once, and never counts a pod that it
// has deleted, which its Deployment would take as available (W2.42).
func TestStatusWrites(t *testing.T) {
	for name, test := range map[string]struct {
		pods    int // at the beginning
		refused int // creations and deletions
		want    []int32
	}{
		"created":                {0, 0, []int32{3}},
		"partly refused":         {0, 2, []int32{0, 3}},
		"deleted":                {8, 0, []int32{3}},
		"deletions are refused":  {8, 2, []int32{5, 3}},
		"all deletions, at once": {8, 5, []int32{8, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := []runtime.Object{replicaSet("new", 3, reference("Deployment", "d"))}
				for i := range test.pods {
					objects = append(objects, pod("pod-"+strconv.Itoa(i), "ReplicaSet", "new", "x", time.Hour))
				}
				api := controllertest.New(objects...)
				api.Late = func() time.Duration { return time.Millisecond } // the events of watches
				var mu sync.Mutex
				var stored []int32
				api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
					mu.Lock()
					defer mu.Unlock()
					if set, ok := o.(*appsv1.ReplicaSet); ok && verb == "update" {
						stored = append(stored, set.Status.Replicas)
					}
					if gvr.Resource == "pods" && (verb == "create" || verb == "delete") && test.refused > 0 {
						test.refused--
						return apierrors.NewForbidden(gvr.GroupResource(), o.GetName(), errors.New("quota"))
					}
					return nil
				}
				sets, pods := source.ReplicaSets(api), source.Pods(api)
				c, err := New(api, record.NewFakeRecorder(100), sets, pods)
				if err != nil {
					t.Fatal(err)
				}
				controllertest.Run(t, c, sets, pods)
				time.Sleep(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if !slices.Equal(stored, test.want) {
					t.Errorf("stored replicas %v, want %v", stored, test.want)
				}
			})
		})
	}
}
