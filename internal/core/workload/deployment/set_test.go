package deployment

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
)

func created(t *testing.T, w *world) *appsv1.ReplicaSet {
	t.Helper()
	for _, step := range Decide(w.input()).Steps {
		if step.Create != nil {
			return step.Create
		}
	}
	t.Fatal("no set is created")
	return nil
}

// W2.4: the name and the labels of a set come from the hash of its template; W0.20: the Deployment is its controller.
func TestNewSet(t *testing.T) {
	w := newWorld()
	hash := workload.TemplateHash(&w.d.Spec.Template, nil)
	s := created(t, w)
	if s.Name != "web-"+hash {
		t.Errorf("the name is %s", s.Name)
	}
	for where, labels := range map[string]map[string]string{"set": s.Labels, "selector": s.Spec.Selector.MatchLabels,
		"template": s.Spec.Template.Labels} {
		if len(labels) != 2 || labels["pod-template-hash"] != hash || labels["app"] != "web" {
			t.Errorf("labels of the %s: %v", where, labels)
		}
	}
	if w.d.Spec.Selector.MatchLabels["pod-template-hash"] != "" || w.d.Spec.Template.Labels["pod-template-hash"] != "" {
		t.Error("the Deployment was changed")
	}
	o := s.OwnerReferences[0]
	if o.APIVersion != "apps/v1" || o.Kind != "Deployment" || o.Name != "web" || o.UID != "d" || !*o.Controller ||
		!*o.BlockOwnerDeletion {
		t.Errorf("the owner is %+v", o)
	}
	w.d.Name = strings.Repeat("a", 253)
	if name := created(t, w).Name; len(name) != 253 || !strings.HasSuffix(name, "-"+hash) {
		t.Errorf("the name has %d characters: %s", len(name), name)
	}
}

// W2.28, W2.29, W12.11: a set with the template is the new one, whatever its name, and also without the label of the
// hash, which it does not get; of several it is the oldest.
func TestAdoptedSet(t *testing.T) {
	w := newWorld()
	for i, name := range []string{"young", "old"} {
		s := created(t, newWorld())
		s.Name, s.UID = name, types.UID(name)
		s.CreationTimestamp = metav1.NewTime(noon.AddDate(0, 0, -i))
		for _, labels := range []map[string]string{s.Labels, s.Spec.Selector.MatchLabels, s.Spec.Template.Labels} {
			delete(labels, "pod-template-hash")
		}
		w.sets = append(w.sets, s)
		w.left[s.UID] = &[2]int32{}
	}
	w.settle()
	if len(w.sets) != 2 {
		t.Fatalf("%d sets", len(w.sets))
	}
	for _, s := range w.sets {
		want := int32(0)
		if s.Name == "old" {
			want = 3
		}
		if *s.Spec.Replicas != want || len(s.Labels) != 1 || len(s.Spec.Template.Labels) != 1 {
			t.Errorf("set %s has the size %d, want %d, and the labels %v", s.Name, *s.Spec.Replicas, want, s.Labels)
		}
	}
}

// W2.71: the count of ending pods is the sum, and unknown while a set that has a status lacks it.
func TestTerminating(t *testing.T) {
	set := func(observed int64, n ...int32) *appsv1.ReplicaSet {
		s := &appsv1.ReplicaSet{Status: appsv1.ReplicaSetStatus{ObservedGeneration: observed}}
		for i := range n {
			s.Status.TerminatingReplicas = &n[i]
		}
		return s
	}
	if n := terminating([]*appsv1.ReplicaSet{set(1, 2), set(1, 3), set(0)}); n == nil || *n != 5 {
		t.Errorf("2, 3, and a set without a status: %v", n)
	}
	if n := terminating([]*appsv1.ReplicaSet{set(1, 2), set(1)}); n != nil {
		t.Errorf("one is unknown: %v", *n)
	}
}
