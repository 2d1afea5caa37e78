package apiserver

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A custom resource with too many errors is refused with the first of them, like an object of a built-in kind.
func TestTooManyErrorsOfACustomResource(t *testing.T) {
	r := start(t, t.TempDir())
	d := gadgets()
	texts := apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{
		Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}}}
	schema := d.Spec.Versions[0].Schema.OpenAPIV3Schema
	schema.Properties["spec"].Properties["parts"], schema.Properties["status"].Properties["parts"] = texts, texts
	r.establish(t, d)
	c := r.objects(t).Resource(gadgetResource).Namespace("default")
	parts := func(n int, of any) map[string]any {
		list := make([]any, n)
		for i := range list {
			list[i] = of
		}
		return map[string]any{"parts": list}
	}
	const many = 5000
	ctx := t.Context()
	stored, err := c.Create(ctx, gadget("good", parts(4*many, "x")), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"spec": parts(many, 1)})
	if err != nil {
		t.Fatal(err)
	}
	changed := func(field string) (err error) {
		o := stored.DeepCopy()
		o.Object[field] = parts(many, int64(1))
		if field == "status" {
			_, err = c.UpdateStatus(ctx, o, metav1.UpdateOptions{})
		} else {
			_, err = c.Update(ctx, o, metav1.UpdateOptions{})
		}
		return err
	}
	created := func(n int) error {
		_, err := c.Create(ctx, gadget("bad", parts(n, int64(1))), metav1.CreateOptions{})
		return err
	}
	for how, try := range map[string]func() error{
		"create": func() error { return created(many) }, "few errors": func() error { return created(many / 10) },
		"update": func() error { return changed("spec") }, "status": func() error { return changed("status") },
		"patch": func() error {
			_, err := c.Patch(ctx, "good", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	} {
		err := try()
		status, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok || !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "must be of type string") {
			t.Errorf("%s: %.300v", how, err)
			continue
		}
		// The library adds that rules were not looked at.
		n, want := len(status.Status().Details.Causes), many/10+1
		if how != "few errors" {
			want = 1001
		}
		if more := strings.Contains(err.Error(), "more errors are not shown"); n != want || more != (n == 1001) {
			t.Errorf("%s: %d errors, %.300v", how, n, err)
		}
	}
}
