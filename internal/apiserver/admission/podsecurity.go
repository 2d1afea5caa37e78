package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/component-base/metrics/legacyregistry"
	podsecurity "k8s.io/pod-security-admission/admission"
	"k8s.io/pod-security-admission/admission/api/load"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"
)

// podSecurity enforces the Pod Security Standard in the labels of a namespace.
type podSecurity struct{ *podsecurity.Admission }

// newPodSecurity reads defaults and exemptions from a PodSecurityConfiguration; none if config is
// nil.
func newPodSecurity(reader Reader, config io.Reader) (podSecurity, error) {
	c, err := load.LoadFromReader(config)
	if err != nil {
		return podSecurity{}, fmt.Errorf("read the configuration of PodSecurity: %w", err)
	}
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return podSecurity{}, fmt.Errorf("make the Pod Security checks: %w", err)
	}
	p := podSecurity{&podsecurity.Admission{
		Configuration: c, Evaluator: checks, Metrics: podSecurityMetrics(),
		PodSpecExtractor: podsecurity.DefaultPodSpecExtractor{},
		NamespaceGetter:  policyReader{reader}, PodLister: policyReader{reader},
	}}
	if err := errors.Join(p.CompleteConfiguration(), p.ValidateConfiguration()); err != nil {
		return podSecurity{}, fmt.Errorf("configure PodSecurity: %w", err)
	}
	return p, nil
}

var podSecurityMetrics = sync.OnceValue(func() metrics.Recorder {
	r := metrics.NewPrometheusRecorder(api.GetAPIVersion())
	r.MustRegister(legacyregistry.MustRegister)
	return r
})

func (podSecurity) Handles(op admission.Operation) bool {
	return on{create: true, update: true}.handles(op)
}

// Validate hides the library's method of the same name, which does not know the chain.
func (p podSecurity) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	gr := a.GetResource().GroupResource()
	if gr != podResource && gr != namespaces && !p.PodSpecExtractor.HasPodSpec(gr) {
		return nil
	}
	answer := p.Admission.Validate(ctx, policyAttributes{a})
	for _, w := range answer.Warnings {
		warning.AddWarning(ctx, "", w)
	}
	for k, v := range answer.AuditAnnotations {
		audit.AddAuditAnnotation(ctx, api.AuditAnnotationPrefix+k, v)
	}
	if answer.Allowed {
		return nil
	}
	err := admission.NewForbidden(a, errors.New("not allowed by PodSecurity"))
	status, ok := err.(*apierrors.StatusError) //nolint:errorlint // made in the line above
	if r := answer.Result; ok && r != nil {
		s := &status.ErrStatus
		if r.Message != "" {
			s.Message = r.Message
		}
		if r.Reason != "" {
			s.Reason = r.Reason
		}
		if r.Details != nil {
			s.Details = r.Details
		}
		if r.Code != 0 {
			s.Code = r.Code
		}
	}
	return err
}

// policyAttributes are a request's attributes in the library's form.
type policyAttributes struct{ admission.Attributes }

var _ api.Attributes = policyAttributes{}

func (a policyAttributes) GetObject() (runtime.Object, error) { return a.Attributes.GetObject(), nil }
func (a policyAttributes) GetOldObject() (runtime.Object, error) {
	return a.Attributes.GetOldObject(), nil
}
func (a policyAttributes) GetUserName() string { return a.GetUserInfo().GetName() }
func (a policyAttributes) GetOperation() admissionv1.Operation {
	return admissionv1.Operation(a.Attributes.GetOperation())
}

type policyReader struct{ Reader }

// GetNamespace implements the library's NamespaceGetter.
func (r policyReader) GetNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	o, err := r.Get(ctx, namespaces, "", name)
	if err != nil {
		return nil, err
	}
	n, ok := o.(*corev1.Namespace)
	if !ok {
		return nil, fmt.Errorf("expected a namespace, got %T", o)
	}
	return n, nil
}

// ListPods implements the library's PodLister.
func (r policyReader) ListPods(ctx context.Context, namespace string) ([]*corev1.Pod, error) {
	var out []*corev1.Pod
	err := r.List(ctx, podResource, namespace, func(o runtime.Object) bool {
		if p, ok := o.(*corev1.Pod); ok {
			out = append(out, p)
		}
		return true
	})
	return out, err
}
