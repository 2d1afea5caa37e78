package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	defaultTimeoutSeconds int32 = 10
	defaultPort           int32 = 443
)

// RegisterDefaults adds the defaulting of these kinds to s.
func RegisterDefaults(s *runtime.Scheme) error {
	s.AddTypeDefaultingFunc(&admissionregistrationv1.MutatingWebhookConfiguration{}, func(o any) {
		c := o.(*admissionregistrationv1.MutatingWebhookConfiguration)
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			defaultWebhook(&w.FailurePolicy, &w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector, &w.TimeoutSeconds,
				w.ClientConfig.Service)
			orNew(&w.ReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy)
			for j := range w.Rules {
				orNew(&w.Rules[j].Scope, admissionregistrationv1.AllScopes)
			}
		}
	})
	s.AddTypeDefaultingFunc(&admissionregistrationv1.ValidatingWebhookConfiguration{}, func(o any) {
		c := o.(*admissionregistrationv1.ValidatingWebhookConfiguration)
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			defaultWebhook(&w.FailurePolicy, &w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector, &w.TimeoutSeconds,
				w.ClientConfig.Service)
			for j := range w.Rules {
				orNew(&w.Rules[j].Scope, admissionregistrationv1.AllScopes)
			}
		}
	})
	s.AddTypeDefaultingFunc(&admissionregistrationv1.ValidatingAdmissionPolicy{}, func(o any) {
		p := o.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		orNew(&p.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatch(p.Spec.MatchConstraints)
	})
	s.AddTypeDefaultingFunc(&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, func(o any) {
		defaultMatch(o.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding).Spec.MatchResources)
	})
	s.AddTypeDefaultingFunc(&admissionregistrationv1.MutatingAdmissionPolicy{}, func(o any) {
		p := o.(*admissionregistrationv1.MutatingAdmissionPolicy)
		orNew(&p.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatch(p.Spec.MatchConstraints)
	})
	s.AddTypeDefaultingFunc(&admissionregistrationv1.MutatingAdmissionPolicyBinding{}, func(o any) {
		defaultMatch(o.(*admissionregistrationv1.MutatingAdmissionPolicyBinding).Spec.MatchResources)
	})
	return nil
}

func defaultWebhook(failure **admissionregistrationv1.FailurePolicyType,
	match **admissionregistrationv1.MatchPolicyType, namespaces, objects **metav1.LabelSelector,
	timeout **int32, service *admissionregistrationv1.ServiceReference) {
	orNew(failure, admissionregistrationv1.Fail)
	orNew(match, admissionregistrationv1.Equivalent)
	orNew(namespaces, metav1.LabelSelector{})
	orNew(objects, metav1.LabelSelector{})
	orNew(timeout, defaultTimeoutSeconds)
	if service != nil {
		orNew(&service.Port, defaultPort)
	}
}

func defaultMatch(m *admissionregistrationv1.MatchResources) {
	if m == nil {
		return
	}
	orNew(&m.MatchPolicy, admissionregistrationv1.Equivalent)
	orNew(&m.NamespaceSelector, metav1.LabelSelector{})
	orNew(&m.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [][]admissionregistrationv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			orNew(&rules[i].Scope, admissionregistrationv1.AllScopes)
		}
	}
}

func orNew[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}
