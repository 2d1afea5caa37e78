package scheme_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/kinds/scheme"
)

// A conversion sets the kind of what it returns only.
func TestSharingConvertor(t *testing.T) {
	set, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	in := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}
	out, err := scheme.SharingConvertor(set.Scheme).ConvertToVersion(in, appsv1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	d, ok := out.(*appsv1.Deployment)
	if !ok || d.Kind != "Deployment" || d.APIVersion != "apps/v1" || d.Labels["a"] != "b" {
		t.Errorf("converted to %#v", out)
	}
	if in.Kind != "" {
		t.Errorf("the argument says now that it is a %s", in.Kind)
	}
	back, err := scheme.SharingConvertor(set.Scheme).ConvertToVersion(d, scheme.Hub("apps"))
	if err != nil || back.GetObjectKind().GroupVersionKind().Kind != "" {
		t.Errorf("the hub's kind is %v, %v", back.GetObjectKind().GroupVersionKind(), err)
	}
	if d.Kind != "Deployment" {
		t.Errorf("the argument has lost its kind")
	}
}
