package observe

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/resources"
	"carob/internal/node/spec"
)

// A pod that only the runtime has still occupies what it requested (L3.10); text that carob did not write is ignored.
func TestOrphanOccupies(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"),
		corev1.ResourceMemory: resource.MustParse("64Mi"), "example.com/gpu": resource.MustParse("2")}
	pod.Spec.Containers[0].Resources.Requests = requests
	text, err := spec.RequestsText(pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		text string
		want corev1.ResourceList
	}{
		{text, requests}, {"", nil}, {"{", nil}, {`{"cpu":"x"}`, nil}, {`{"cpu":"-1"}`, nil}, {`[1]`, nil},
	} {
		p := inRuntime{sandboxes: []*cri.PodSandbox{{Labels: map[string]string{spec.LabelPodUID: "a"},
			Annotations: map[string]string{"owner": "me", spec.AnnotationRequests: test.text}}},
			containers: []*cri.Container{{Labels: map[string]string{spec.LabelContainerName: "c"}}}}
		orphan := p.orphan("owner", "me")
		got, want := resources.AmountOf(resources.Requests(orphan)), resources.AmountOf(test.want)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: occupies %+v, want %+v", test.text, got, want)
		}
		if p.orphan("owner", "other") != nil {
			t.Error("the pod of another agent")
		}
	}
}
