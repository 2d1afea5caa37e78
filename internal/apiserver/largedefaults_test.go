package apiserver

import (
	"encoding/json"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Defaults in each item of a list make gigabytes of a request of some kilobytes: it is refused before anything encodes
// them, whichever way it comes.
func TestDefaultsDoNotGrowForEver(t *testing.T) {
	r := start(t, t.TempDir())
	d := gadgets()
	text, err := json.Marshal(strings.Repeat("x", 100_000))
	if err != nil {
		t.Fatal(err)
	}
	d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["parts"] = apiextensionsv1.JSONSchemaProps{
		Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"text": {Type: "string", Default: &apiextensionsv1.JSON{Raw: text}}}}}}
	r.establish(t, d)
	c := r.objects(t).Resource(gadgetResource).Namespace("default")
	parts := func(n int) map[string]any {
		list := make([]any, n)
		for i := range list {
			list[i] = map[string]any{}
		}
		return map[string]any{"parts": list}
	}
	ctx := t.Context()
	if _, err := c.Create(ctx, gadget("small", parts(2)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	merge, err := json.Marshal(map[string]any{"spec": parts(20_000)})
	if err != nil {
		t.Fatal(err)
	}
	for how, try := range map[string]func() error{
		"create": func() error {
			_, err := c.Create(ctx, gadget("large", parts(20_000)), metav1.CreateOptions{})
			return err
		},
		"dry run": func() error {
			_, err := c.Create(ctx, gadget("large", parts(20_000)),
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		},
		"patch": func() error {
			_, err := c.Patch(ctx, "small", types.MergePatchType, merge, metav1.PatchOptions{})
			return err
		},
		"apply": func() error {
			_, err := c.Apply(ctx, "applied", gadget("applied", parts(20_000)), metav1.ApplyOptions{FieldManager: "t"})
			return err
		},
	} {
		if err := try(); !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("%s: %v, want that it is too large", how, err)
		}
	}
}
