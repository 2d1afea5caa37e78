package webui

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a Service is explained by has one order: its row would change each time that it is made again.
func TestOrderOfRelatedObjects(t *testing.T) {
	s := newState()
	for i := range 20 {
		name := fmt.Sprintf("x%02d", (i*7)%20)
		s.put("endpointslice", &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}})
		s.put("pod", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Labels: map[string]string{"app": "web"}}})
		s.put("pod", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: name,
			Labels: map[string]string{"app": "web"}}})
	}
	list, pods := s.slicesOf("ns/web"), s.selected("ns", map[string]string{"app": "web"})
	if len(list) != 20 || len(pods) != 20 {
		t.Fatalf("%d slices, %d pods", len(list), len(pods))
	}
	for i := range 20 {
		if want := fmt.Sprintf("x%02d", i); list[i].Name != want || pods[i].Name != want {
			t.Errorf("%d: %s, %s", i, list[i].Name, pods[i].Name)
		}
	}
}

// TestWarningsOfWhatIsGoneEnd: those of objects that are not shown, or that ended before, are dropped with their
// events; or a page that is open for days would have no place for new ones.
func TestWarningsOfWhatIsGoneEnd(t *testing.T) {
	s := newState()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1"}}
	s.put("pod", p)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u2"}}
	s.put("node", node)
	about := func(kind, namespace, name, uid string) *corev1.Event {
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name + "." + uid},
			InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name, UID: types.UID(uid)}}
		s.put("event", e)
		return e
	}
	kept := []*corev1.Event{about("Pod", "ns", "web", "u1"), about("Node", "", "n1", "n1")}
	gone := []*corev1.Event{about("Pod", "ns", "web", "u0"), about("Pod", "ns", "old", "u3"),
		about("ReplicaSet", "ns", "web-1", "u4")}
	for _, e := range append(gone, kept...) {
		s.drop("event", e)
	}
	if len(s.events) != 2 || len(s.warnings(p)) != 1 || len(s.warnings(node)) != 1 {
		t.Errorf("warnings are kept about %v", slices.Sorted(maps.Keys(s.events)))
	}
}
