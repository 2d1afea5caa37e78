package statefulset

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// W3.5–W3.7, W12.3: name, labels, host name and subdomain of a pod; those of the template are overwritten. What was
// changed later in the pod's host name is not repaired, its labels are (W3.44).
func TestIdentity(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web", UID: "u"},
		Spec: appsv1.StatefulSetSpec{ServiceName: "svc"}}
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", appsv1.PodIndexLabel: "mine"}},
		Spec:       corev1.PodSpec{Hostname: "host", Subdomain: "domain"}}
	pod, err := newPod(set, template, "web-5f6d", 12)
	if err != nil {
		t.Fatal(err)
	}
	if pod.Name != "web-12" || pod.GenerateName != "" || pod.Spec.Hostname != "web-12" || pod.Spec.Subdomain != "svc" {
		t.Errorf("name %s, prefix %q, host %s.%s", pod.Name, pod.GenerateName, pod.Spec.Hostname, pod.Spec.Subdomain)
	}
	if want := map[string]string{"app": "web", "statefulset.kubernetes.io/pod-name": "web-12",
		"apps.kubernetes.io/pod-index": "12", "controller-revision-hash": "web-5f6d"}; !maps.Equal(pod.Labels, want) {
		t.Errorf("labels %v, want %v", pod.Labels, want)
	}
	pod.Spec.Hostname = "changed"
	if !HasIdentity(pod) {
		t.Error("another host name counts as a lost identity")
	}
	delete(pod.Labels, "statefulset.kubernetes.io/pod-name")
	if HasIdentity(pod) {
		t.Error("a missing label does not")
	}
}
