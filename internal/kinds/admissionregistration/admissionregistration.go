package admissionregistration

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"carob/internal/kinds/registry"
)

const (
	validatingConfigurations = "validatingwebhookconfigurations"
	mutatingConfigurations   = "mutatingwebhookconfigurations"
	validatingPolicies       = "validatingadmissionpolicies"
	validatingBindings       = "validatingadmissionpolicybindings"
	mutatingPolicies         = "mutatingadmissionpolicies"
	mutatingBindings         = "mutatingadmissionpolicybindings"
)

// GroupResources are the group resources of this package.
func GroupResources() []schema.GroupResource {
	var out []schema.GroupResource
	for _, r := range []string{mutatingConfigurations, validatingConfigurations, validatingPolicies, validatingBindings,
		mutatingPolicies, mutatingBindings} {
		out = append(out, schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: r})
	}
	return out
}

// Hooks connect the API server to writes of these kinds. Both may be nil.
type Hooks struct {
	// Written is called after an object of a kind was stored, before the client gets the response.
	Written func()
	// MayRead returns an error unless the user of the request may read the parameters that a policy
	// or binding refers to: objects of kind in namespace ("*" for any) with name ("*" for any).
	MayRead func(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) error
	// ParamKind returns the parameter kind of a stored policy, nil if there is none.
	ParamKind func(ctx context.Context, mutating bool, policy string) *admissionregistrationv1.ParamKind
}

// Kinds describes the kinds of admissionregistration.k8s.io/v1.
func Kinds(h Hooks) []*registry.Resource {
	kind := admissionregistrationv1.SchemeGroupVersion.WithKind
	out := []*registry.Resource{
		registry.Of[admissionregistrationv1.MutatingWebhookConfiguration,
			admissionregistrationv1.MutatingWebhookConfigurationList](registry.Resource{
			Kind: kind("MutatingWebhookConfiguration"), Plural: mutatingConfigurations, Categories: extensions,
			RequireResourceVersion: true, Table: webhookTable,
			Validator: validator(mutatingConfiguration, mutatingConfigurationUpdate),
			PrepareUpdate: generation(func(o *admissionregistrationv1.MutatingWebhookConfiguration) any {
				return o.Webhooks
			}),
		}),
		registry.Of[admissionregistrationv1.ValidatingWebhookConfiguration,
			admissionregistrationv1.ValidatingWebhookConfigurationList](registry.Resource{
			Kind: kind("ValidatingWebhookConfiguration"), Plural: validatingConfigurations, Categories: extensions,
			RequireResourceVersion: true, Table: webhookTable,
			Validator: validator(validatingConfiguration, validatingConfigurationUpdate),
			PrepareUpdate: generation(func(o *admissionregistrationv1.ValidatingWebhookConfiguration) any {
				return o.Webhooks
			}),
		}),
		registry.Of[admissionregistrationv1.ValidatingAdmissionPolicy,
			admissionregistrationv1.ValidatingAdmissionPolicyList](registry.Resource{
			Kind: kind("ValidatingAdmissionPolicy"), Plural: validatingPolicies, Categories: extensions, Status: true,
			RequireResourceVersion: true, Table: policyTable("Validations"),
			Validator: h.authorized(validator(validatingPolicy, validatingPolicyUpdate), h.policyParams),
		}),
		registry.Of[admissionregistrationv1.ValidatingAdmissionPolicyBinding,
			admissionregistrationv1.ValidatingAdmissionPolicyBindingList](registry.Resource{
			Kind: kind("ValidatingAdmissionPolicyBinding"), Plural: validatingBindings, Categories: extensions,
			RequireResourceVersion: true, Table: bindingTable,
			Validator: h.authorized(validator(validatingBinding, nil), h.bindingParams),
		}),
		registry.Of[admissionregistrationv1.MutatingAdmissionPolicy,
			admissionregistrationv1.MutatingAdmissionPolicyList](registry.Resource{
			Kind: kind("MutatingAdmissionPolicy"), Plural: mutatingPolicies, Categories: extensions,
			RequireResourceVersion: true, Table: policyTable("Mutations"),
			Validator: h.authorized(validator(mutatingPolicy, mutatingPolicyUpdate), h.policyParams),
		}),
		registry.Of[admissionregistrationv1.MutatingAdmissionPolicyBinding,
			admissionregistrationv1.MutatingAdmissionPolicyBindingList](registry.Resource{
			Kind: kind("MutatingAdmissionPolicyBinding"), Plural: mutatingBindings, Categories: extensions,
			RequireResourceVersion: true, Table: bindingTable,
			Validator: h.authorized(validator(mutatingBinding, nil), h.bindingParams),
		}),
	}
	for _, r := range out {
		r.Cluster = true
		if h.Written != nil {
			r.Customize = func(s *genericregistry.Store, _ *registry.Strategy) {
				s.AfterCreate = func(runtime.Object, *metav1.CreateOptions) { h.Written() }
			}
		}
		if r.Plural == validatingPolicies {
			r.Validator.StatusUpdate = func(_ context.Context, obj, _ runtime.Object) field.ErrorList {
				return policyStatus(&obj.(*admissionregistrationv1.ValidatingAdmissionPolicy).Status)
			}
		}
	}
	return out
}

var extensions = []string{"api-extensions"}

func validator[T any](create func(*T) field.ErrorList, update func(obj, old *T) field.ErrorList) registry.Validator {
	v := registry.Validator{
		Create: func(_ context.Context, obj runtime.Object) field.ErrorList { return create(any(obj).(*T)) },
		Update: func(_ context.Context, obj, old runtime.Object) field.ErrorList {
			return update(any(obj).(*T), any(old).(*T))
		},
	}
	if update == nil {
		v.Update = func(_ context.Context, obj, _ runtime.Object) field.ErrorList { return create(any(obj).(*T)) }
	}
	return v
}

// generation increments metadata.generation of a kind whose desired state is not in .spec.
func generation[T any](state func(*T) any) func(context.Context, runtime.Object, runtime.Object) {
	return func(_ context.Context, obj, old runtime.Object) {
		m, om := any(obj).(metav1.Object), any(old).(metav1.Object)
		m.SetGeneration(om.GetGeneration())
		if !equality.Semantic.DeepEqual(state(any(obj).(*T)), state(any(old).(*T))) {
			m.SetGeneration(om.GetGeneration() + 1)
		}
	}
}
