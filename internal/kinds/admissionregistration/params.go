package admissionregistration

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/registry"
)

// The writer of a policy or binding can infer the content of the parameters from the policy's
// messages and decisions, and must therefore be allowed to read them.

// need returns the objects that the writer must be allowed to read; nil for none. at is the field
// for the error.
type need struct {
	kind            schema.GroupVersionKind
	namespace, name string
	at              *field.Path
}

// authorized adds the check to a validator: a valid object whose parameters differ from the stored
// ones is rejected unless its writer may read them.
func (h Hooks) authorized(v registry.Validator,
	needs func(ctx context.Context, obj, old runtime.Object) *need) registry.Validator {
	if h.MayRead == nil {
		return v
	}
	create, update := v.Create, v.Update
	check := func(ctx context.Context, errs field.ErrorList, obj, old runtime.Object) field.ErrorList {
		if len(errs) > 0 {
			return errs
		}
		n := needs(ctx, obj, old)
		if n == nil {
			return nil
		}
		if err := h.MayRead(ctx, n.kind, n.namespace, n.name); err != nil {
			return field.ErrorList{field.Forbidden(n.at, err.Error())}
		}
		return nil
	}
	v.Create = func(ctx context.Context, obj runtime.Object) field.ErrorList {
		return check(ctx, create(ctx, obj), obj, nil)
	}
	v.Update = func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
		return check(ctx, update(ctx, obj, old), obj, old)
	}
	return v
}

func (h Hooks) policyParams(_ context.Context, obj, old runtime.Object) *need {
	kindOf := func(o runtime.Object) *admissionregistrationv1.ParamKind {
		switch p := o.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			return p.Spec.ParamKind
		case *admissionregistrationv1.MutatingAdmissionPolicy:
			return p.Spec.ParamKind
		}
		return nil
	}
	kind := kindOf(obj)
	if kind == nil || old != nil && equality.Semantic.DeepEqual(kind, kindOf(old)) {
		return nil
	}
	return &need{groupVersionKind(kind), "*", "*", field.NewPath("spec", "paramKind")}
}

func (h Hooks) bindingParams(ctx context.Context, obj, old runtime.Object) *need {
	parts := func(o runtime.Object) (policy string, ref *admissionregistrationv1.ParamRef, mutating bool) {
		switch b := o.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			return b.Spec.PolicyName, b.Spec.ParamRef, false
		case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
			return b.Spec.PolicyName, b.Spec.ParamRef, true
		}
		return "", nil, false
	}
	policy, ref, mutating := parts(obj)
	if ref == nil {
		return nil
	}
	if old != nil {
		if p, r, _ := parts(old); p == policy && equality.Semantic.DeepEqual(r, ref) {
			return nil
		}
	}
	n := &need{namespace: ref.Namespace, name: ref.Name, at: field.NewPath("spec", "paramRef")}
	if kind := h.ParamKind(ctx, mutating, policy); kind != nil {
		n.kind = groupVersionKind(kind)
	}
	return n
}

// groupVersionKind returns the kind that k names, with empty fields for unknown parts.
func groupVersionKind(k *admissionregistrationv1.ParamKind) schema.GroupVersionKind {
	gv, err := schema.ParseGroupVersion(k.APIVersion)
	if err != nil {
		return schema.GroupVersionKind{}
	}
	return gv.WithKind(k.Kind)
}
