package admission

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

// sizer records the pods that it gets, and their namespaces.
type sizer struct{ requests []string }

func (s *sizer) AdmitPod(_ context.Context, pod *corev1.Pod, _ []*corev1.LimitRange) {
	s.requests = append(s.requests, pod.Namespace+"/"+pod.Name)
}

// W9.70: pods are sized and autoscalers checked while the add-on is on, and at no other time.
func TestPodAutoscaler(t *testing.T) {
	on := &PodAutoscalerSwitch{}
	p := podAutoscaler{usual(), on}
	request := func(o, old runtime.Object, resource schema.GroupVersionResource, sub string,
		op admission.Operation) admission.Attributes {
		return admission.NewAttributesRecord(o, old, schema.GroupVersionKind{}, "ns", "o", resource, sub, op, nil,
			false, nil)
	}
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	vpas := schema.GroupVersionResource{Group: "autoscaling.k8s.io", Version: "v1", Resource: "verticalpodautoscalers"}
	autoscaler := func(policy any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"targetRef":    map[string]any{"kind": "Deployment", "name": "d"},
			"updatePolicy": policy}}}
	}
	strange := map[string]any{"updateMode": "Sometimes"}
	both := func(a admission.Attributes) error {
		t.Helper()
		if err := p.Admit(t.Context(), a, nil); err != nil {
			t.Errorf("admit: %v", err)
		}
		return p.Validate(t.Context(), a, nil)
	}

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "o"}}
	bare := autoscaler(nil)
	for _, a := range []admission.Attributes{request(pod, nil, pods, "", admission.Create),
		request(autoscaler(strange), nil, vpas, "", admission.Create), request(bare, nil, vpas, "", admission.Create)} {
		if err := both(a); err != nil {
			t.Errorf("while it is off: %v", err)
		}
	}
	if mode, _, _ := unstructured.NestedString(bare.Object, "spec", "updatePolicy", "updateMode"); mode != "" {
		t.Errorf("an autoscaler gets mode %q while it is off", mode)
	}

	s := &sizer{}
	on.Set(s)
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		corev1.MirrorPodAnnotationKey: "x"}}}
	for _, a := range []admission.Attributes{request(pod, nil, pods, "", admission.Create),
		request(mirror, nil, pods, "", admission.Create), request(pod, pod, pods, "", admission.Update),
		request(pod, pod, pods, "status", admission.Update)} {
		if err := both(a); err != nil {
			t.Error(err)
		}
	}
	if strings.Join(s.requests, " ") != "ns/o" || pod.Namespace != "" {
		t.Errorf("requested %q; the pod's namespace is %q", s.requests, pod.Namespace)
	}
	if err := both(request(bare, nil, vpas, "", admission.Create)); err != nil {
		t.Error(err)
	}
	if mode, _, _ := unstructured.NestedString(bare.Object, "spec", "updatePolicy", "updateMode"); mode != "Recreate" {
		t.Errorf("an autoscaler without mode gets %q", mode)
	}
	for what, o := range map[string]runtime.Object{"mode": autoscaler(strange), "form": autoscaler("strange"),
		"no target": &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}} {
		err := both(request(o, nil, vpas, "", admission.Create))
		if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", what, err)
		}
		// Its status can still be written, and a valid update can replace an object that was stored without
		// validation.
		if err := both(request(o, o, vpas, "status", admission.Update)); err != nil {
			t.Errorf("%s: status: %v", what, err)
		}
		if err := both(request(autoscaler(nil), o, vpas, "", admission.Update)); err != nil {
			t.Errorf("%s: mended: %v", what, err)
		}
	}
	on.Set(nil)
	if err := both(request(autoscaler(strange), nil, vpas, "", admission.Create)); err != nil {
		t.Errorf("off again: %v", err)
	}
}
