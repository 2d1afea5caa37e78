package registry

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The answer to an object with very many errors, or with large ones, is bounded, and says so.
func TestManyErrorsAreBounded(t *testing.T) {
	for _, c := range []struct{ errors, value, want int }{
		{0, 0, 0}, {1, 0, 1}, {MaxErrors, 0, MaxErrors}, {MaxErrors + 1, 0, MaxErrors + 1}, {100_000, 0, MaxErrors + 1},
		{1, 3 << 20, 1}, {2, 3 << 20, 2}, {50, 100 << 10, 11},
	} {
		found := func(context.Context, runtime.Object) field.ErrorList {
			var errs field.ErrorList
			for i := range c.errors {
				path := field.NewPath("data").Index(i)
				errs = append(errs, field.Invalid(path, strings.Repeat("x", c.value), "is bad"))
			}
			return errs
		}
		changed := func(ctx context.Context, obj, _ runtime.Object) field.ErrorList { return found(ctx, obj) }
		s := Strategy{scheme: runtime.NewScheme(),
			Resource: &Resource{OwnMetadata: true, Validator: Validator{Create: found, Update: changed}}}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "ns", ResourceVersion: "1"}}
		for how, errs := range map[string]field.ErrorList{"create": s.Validate(t.Context(), m),
			"update": s.ValidateUpdate(t.Context(), m, m)} {
			if len(errs) != c.want {
				t.Errorf("%s with %d errors of %d bytes: %d errors, want %d", how, c.errors, c.value, len(errs), c.want)
			}
			if c.errors <= MaxErrors && c.want >= c.errors {
				continue
			}
			if last, more := errs[len(errs)-1].Error(), fmt.Sprintf("%d more errors are not shown",
				c.errors-c.want+1); !strings.Contains(last, more) {
				t.Errorf("%s: %q, want %q", how, last, more)
			}
		}
	}
}
