package pods

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// WithWorkloadWarnings adds the warnings about a workload: about its name, which is the prefix of
// its pods' names (W0.76), and about its template.
func WithWorkloadWarnings[T any](r rules.Rules, template func(*T) *corev1.PodTemplateSpec) rules.Rules {
	r = WithTemplateWarnings(r, template)
	before := r.Warnings
	r.Warnings = func(ctx context.Context, obj, old runtime.Object) []string {
		var out []string
		if m, err := meta.Accessor(obj); err == nil && old == nil {
			if msgs := validation.IsDNS1123Label(m.GetName()); m.GetName() != "" && len(msgs) > 0 {
				out = append(out,
					fmt.Sprintf(
						"metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
			}
		}
		return append(out, before(ctx, obj, old)...)
	}
	return r
}

// WithTemplateWarnings adds the warnings about the template of a workload.
func WithTemplateWarnings[T any](r rules.Rules, template func(*T) *corev1.PodTemplateSpec) rules.Rules {
	before := r.Warnings
	r.Warnings = func(ctx context.Context, obj, old runtime.Object) []string {
		var out []string
		if before != nil {
			out = before(ctx, obj, old)
		}
		if t := template(any(obj).(*T)); t != nil && !rules.SameGeneration(obj, old) {
			out = append(out, TemplateWarnings(t, field.NewPath("spec", "template"))...)
		}
		return out
	}
	return r
}
