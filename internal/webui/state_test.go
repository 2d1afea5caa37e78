package webui

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	slices, pods := s.slicesOf("ns/web"), s.selected("ns", map[string]string{"app": "web"})
	if len(slices) != 20 || len(pods) != 20 {
		t.Fatalf("%d slices, %d pods", len(slices), len(pods))
	}
	for i := range 20 {
		if want := fmt.Sprintf("x%02d", i); slices[i].Name != want || pods[i].Name != want {
			t.Errorf("%d: %s, %s", i, slices[i].Name, pods[i].Name)
		}
	}
}
