package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The agent drops the field owners of a pod without taking them from the pod that the API server holds.
func TestOwnMeta(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	var updated *corev1.Pod
	s := sink[*corev1.Pod]{received: ownMeta, update: func(p *corev1.Pod) { updated = p }}
	if err := s.Update(pod); err != nil {
		t.Fatal(err)
	}
	if updated.Name != "p" || updated.ManagedFields != nil {
		t.Errorf("the agent got %+v", updated.ObjectMeta)
	}
	if len(pod.ManagedFields) != 1 {
		t.Error("the pod of the API server lost its field owners")
	}
	if err := s.Update(&corev1.Node{}); err == nil {
		t.Error("a Node was taken for a pod")
	}
}
