package admission

import (
	"context"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	"carob/internal/core/workload/vpa"
)

// PodAutoscaler sets the recommended requests of a pod that is created.
type PodAutoscaler interface {
	AdmitPod(ctx context.Context, pod *corev1.Pod, ranges []*corev1.LimitRange)
}

// PodAutoscalerSwitch holds the PodAutoscaler while the add-on is on. The zero value is off.
type PodAutoscalerSwitch struct{ on atomic.Pointer[PodAutoscaler] }

// Set turns it on, or with nil off.
func (s *PodAutoscalerSwitch) Set(a PodAutoscaler) {
	if a == nil {
		s.on.Store(nil)
		return
	}
	s.on.Store(&a)
}

// podAutoscaler replaces the webhook of the VerticalPodAutoscaler: it sizes pods, and checks
// autoscalers (W9.70). While the add-on is off it does nothing.
type podAutoscaler struct {
	reader Reader
	on     *PodAutoscalerSwitch
}

func (podAutoscaler) Handles(op admission.Operation) bool {
	return on{create: true, update: true}.handles(op)
}

func (p podAutoscaler) active() PodAutoscaler {
	if p.on == nil {
		return nil
	}
	if a := p.on.on.Load(); a != nil {
		return *a
	}
	return nil
}

func (p podAutoscaler) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	active := p.active()
	if active == nil {
		return nil
	}
	if isAutoscaler(a) {
		defaultAutoscaler(a)
		return nil
	}
	pod := newPod(a)
	if pod == nil || isMirror(pod) {
		return nil
	}
	ranges, err := limitRanger{p.reader}.ranges(ctx, a)
	if err != nil {
		return err
	}
	// The name of the namespace may be in the request only.
	namespace := pod.Namespace
	pod.Namespace = a.GetNamespace()
	active.AdmitPod(ctx, pod, ranges)
	pod.Namespace = namespace
	return nil
}

func isAutoscaler(a admission.Attributes) bool {
	return a.GetSubresource() == "" &&
		a.GetResource().GroupResource() == schema.GroupResource{Group: vpa.Group, Resource: "verticalpodautoscalers"}
}

// readAutoscaler decodes an autoscaler; nil for no object. An object that passed the schema of the definition but
// cannot be decoded is a bad request.
func readAutoscaler(o runtime.Object) (*vpa.VerticalPodAutoscaler, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, nil
	}
	v := &vpa.VerticalPodAutoscaler{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, v); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read the VerticalPodAutoscaler: %v", err))
	}
	return v, nil
}

// defaultAutoscaler sets the default update mode. Errors in the object are reported by the validation.
func defaultAutoscaler(a admission.Attributes) {
	u, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok {
		return
	}
	spec, ok := u.Object["spec"].(map[string]any)
	if !ok || spec["updatePolicy"] != nil {
		return
	}
	spec["updatePolicy"] = map[string]any{"updateMode": string(vpa.ModeRecreate)}
}

func (p podAutoscaler) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if p.active() == nil || !isAutoscaler(a) {
		return nil
	}
	v, err := readAutoscaler(a.GetObject())
	if err != nil || v == nil {
		return err
	}
	var old *vpa.VerticalPodAutoscaler
	if a.GetOperation() == admission.Update {
		if old, err = readAutoscaler(a.GetOldObject()); err != nil {
			old = &vpa.VerticalPodAutoscaler{} // it was stored without validation
		}
	}
	warnings, errs := vpa.Validate(v, old)
	for _, w := range warnings {
		warning.AddWarning(ctx, "", w)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: vpa.Group, Kind: "VerticalPodAutoscaler"}, v.Name, errs)
	}
	return nil
}
