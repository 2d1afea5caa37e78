package admissionregistration

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/registry"
)

func policy(kind *admissionregistrationv1.ParamKind) *admissionregistrationv1.ValidatingAdmissionPolicy {
	return &admissionregistrationv1.ValidatingAdmissionPolicy{
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{ParamKind: kind}}
}

func bindingTo(policy, namespace, name string) *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
	return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy, ParamRef: &admissionregistrationv1.ParamRef{Namespace: namespace, Name: name}}}
}

var secrets = &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "Secret"}

// The writer of a policy or binding could read its parameters through the policy's messages: a user
// who must not read secrets tries each way.
func TestParametersMustBeReadable(t *testing.T) {
	plain := &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	for name, tc := range map[string]struct {
		policies bool // otherwise bindings
		obj, old runtime.Object
		requests string // the required read permission, "" for none
	}{
		"policy without parameters": {true, policy(nil), nil, ""},
		"new policy":                {true, policy(secrets), nil, "/v1, Kind=Secret */*"},
		"policy that gets them":     {true, policy(secrets), policy(nil), "/v1, Kind=Secret */*"},
		"policy that gets others":   {true, policy(secrets), policy(plain), "/v1, Kind=Secret */*"},
		"policy that keeps them":    {true, policy(secrets), policy(secrets), ""},
		"policy of no known version": {true,
			policy(&admissionregistrationv1.ParamKind{APIVersion: "a/b/c", Kind: "Secret"}), nil, "/, Kind= */*"},
		"binding without parameters": {false, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, nil, ""},
		"new binding":                {false, bindingTo("p", "ns", "s"), nil, "/v1, Kind=Secret ns/s"},
		"binding to another object": {false, bindingTo("p", "ns", "s"), bindingTo("p", "ns", "other"),
			"/v1, Kind=Secret ns/s"},
		"binding to another namespace": {false, bindingTo("p", "ns", "s"), bindingTo("p", "mine", "s"),
			"/v1, Kind=Secret ns/s"},
		"binding to another policy": {false, bindingTo("p", "ns", "s"), bindingTo("q", "ns", "s"),
			"/v1, Kind=Secret ns/s"},
		"binding that keeps them":        {false, bindingTo("p", "ns", "s"), bindingTo("p", "ns", "s"), ""},
		"binding to a policy to be made": {false, bindingTo("later", "ns", "s"), nil, "/, Kind= ns/s"},
	} {
		t.Run(name, func(t *testing.T) {
			var requests []string
			h := Hooks{
				MayRead: func(_ context.Context, kind schema.GroupVersionKind, namespace, name string) error {
					requests = append(requests, kind.String()+" "+namespace+"/"+name)
					return errors.New("may not")
				},
				ParamKind: func(_ context.Context, mutating bool, policy string) *admissionregistrationv1.ParamKind {
					if mutating || policy != "p" {
						return nil
					}
					return secrets
				},
			}
			valid := registry.Validator{Create: func(context.Context, runtime.Object) field.ErrorList { return nil },
				Update: func(context.Context, runtime.Object, runtime.Object) field.ErrorList { return nil }}
			v := h.authorized(valid, h.bindingParams)
			if tc.policies {
				v = h.authorized(valid, h.policyParams)
			}
			errs := v.Create(t.Context(), tc.obj)
			if tc.old != nil {
				requests = nil
				errs = v.Update(t.Context(), tc.obj, tc.old)
			}
			var want []string
			if tc.requests != "" {
				want = []string{tc.requests}
			}
			if !slices.Equal(requests, want) || (len(errs) > 0) != (tc.requests != "") {
				t.Errorf("required %q, want %q; %v", requests, want, errs)
			}
		})
	}
}

// An invalid object is rejected as invalid; the error does not reveal what may be read.
func TestInvalidObjectsNeedNoPermission(t *testing.T) {
	h := Hooks{MayRead: func(context.Context, schema.GroupVersionKind, string, string) error {
		t.Error("requests")
		return nil
	}}
	wrong := field.ErrorList{field.Required(field.NewPath("spec"), "")}
	v := h.authorized(registry.Validator{Create: func(context.Context,
		runtime.Object) field.ErrorList {
		return wrong
	}}, h.policyParams)
	if errs := v.Create(t.Context(), policy(secrets)); len(errs) != 1 {
		t.Error(errs)
	}
}

func webhook(
	change func(*admissionregistrationv1.ValidatingWebhook)) *admissionregistrationv1.ValidatingWebhookConfiguration {
	url, none, fail, match := "https://h/x", admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail,
		admissionregistrationv1.Exact
	h := admissionregistrationv1.ValidatingWebhook{Name: "a.b.c",
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url}, SideEffects: &none, FailurePolicy: &fail,
		MatchPolicy: &match, AdmissionReviewVersions: []string{"v1"}, NamespaceSelector: &metav1.LabelSelector{},
		ObjectSelector: &metav1.LabelSelector{}, TimeoutSeconds: new(int32(5))}
	if change != nil {
		change(&h)
	}
	return &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{h}}
}

// An update may keep errors of the stored object, as upstream, but must not add new ones.
func TestStoredErrorsMayStay(t *testing.T) {
	some := admissionregistrationv1.SideEffectClassSome
	for name, tc := range map[string]struct {
		change func(*admissionregistrationv1.ValidatingWebhook)
		at     string
	}{
		"side effects": {func(h *admissionregistrationv1.ValidatingWebhook) { h.SideEffects = &some }, "sideEffects"},
		"versions": {func(h *admissionregistrationv1.ValidatingWebhook) {
			h.AdmissionReviewVersions = []string{"v7"}
		}, "admissionReviewVersions"},
		"selectors": {func(h *admissionregistrationv1.ValidatingWebhook) {
			h.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"not a value!"}}}}
		}, "objectSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			if errs := validatingConfiguration(webhook(nil)); len(errs) > 0 {
				t.Fatal(errs)
			}
			bad := webhook(tc.change)
			for when, errs := range map[string]field.ErrorList{"new": validatingConfiguration(bad),
				"put in": validatingConfigurationUpdate(bad, webhook(nil))} {
				if len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), tc.at) {
					t.Errorf("%s: %v", when, errs)
				}
			}
			if errs := validatingConfigurationUpdate(bad, bad.DeepCopy()); len(errs) > 0 {
				t.Errorf("kept: %v", errs)
			}
		})
	}
}
