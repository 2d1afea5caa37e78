package servicepods_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/controllers/servicepods"
	"carob/internal/controllers/source"
)

func service(namespace, name, app string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		CreationTimestamp: metav1.Unix(1, 0)},
		Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Selector: map[string]string{"app": app}}}
}

func pod(name, app string, ready int64) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": app}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.Unix(ready, 0)}}}}
}

// N1.2, N1.3: which Services a change concerns; those of the old and of the new labels, never those
// of another namespace, and none for changes that do not affect endpoints.
func TestChanges(t *testing.T) {
	services, pods := source.Services(fake.NewClientset()), source.Pods(fake.NewClientset())
	var added []string
	w, err := servicepods.New(services, pods, func(key string) { added = append(added, key) })
	if err != nil {
		t.Fatal(err)
	}
	is := func(what string, want ...string) {
		t.Helper()
		slices.Sort(added)
		if !slices.Equal(added, want) {
			t.Errorf("%s: %q, want %q", what, added, want)
		}
		added = nil
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a, b, elsewhere := service("ns", "a", "a"), service("ns", "b", "b"), service("other", "a", "a")
	for _, s := range []*corev1.Service{a, b, elsewhere} {
		must(services.Add(s))
	}
	is("Services come", "ns/a", "ns/b", "other/a")
	must(pods.Add(pod("p", "a", 5)))
	is("a pod comes", "ns/a")
	same := pod("p", "a", 5)
	same.Annotations = map[string]string{"x": "y"}
	must(pods.Update(same))
	is("an annotation")
	must(pods.Update(pod("p", "b", 5)))
	is("other labels", "ns/a", "ns/b")
	must(pods.Delete(pod("p", "b", 5)))
	is("it goes", "ns/b")
	must(services.Delete(b))
	is("a Service goes", "ns/b")

	must(pods.Add(pod("q", "a", 7)))
	must(pods.Add(pod("r", "x", 8)))
	names := func() string {
		list, _ := w.Of(a)
		var out []string
		for _, p := range list {
			out = append(out, p.Name)
		}
		return strings.Join(out, " ")
	}
	if got := names(); got != "q" {
		t.Errorf("pods %q", got)
	}
	must(pods.Update(pod("q", "a", 9)))
	if _, trigger := w.Of(a); !trigger.Equal(time.Unix(9, 0)) {
		t.Errorf("trigger %v", trigger)
	}
	if _, trigger := w.Of(a); !trigger.IsZero() {
		t.Errorf("the same trigger again: %v", trigger)
	}
	w.Forget("ns/a")
	if _, trigger := w.Of(a); !trigger.Equal(time.Unix(1, 0)) {
		t.Errorf("after Forget: %v", trigger)
	}
}
