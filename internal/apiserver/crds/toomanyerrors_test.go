package crds

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/sets"

	"carob/internal/kinds/registry"
)

// nested is a definition with lists, maps, and objects in each other.
func nested() *apiextensionsv1.CustomResourceDefinition {
	type schema = apiextensionsv1.JSONSchemaProps
	text := schema{Type: "string", MaxLength: new(int64(3))}
	leaf := schema{Type: "object", Required: []string{"a", "b"}, Properties: map[string]schema{"a": text,
		"n": {Type: "integer", Maximum: new(5.0)}}}
	list := func(of schema) schema {
		return schema{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &of}}
	}
	byName := func(of schema) schema {
		return schema{Type: "object",
			AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &of}}
	}
	listed := list(leaf)
	listed.AllOf = []schema{{Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &schema{
		Properties: map[string]schema{"n": {Minimum: new(1.0)}}}}}}
	unique := list(schema{Type: "string"})
	unique.XListType = new("set")
	root := schema{Type: "object", Properties: map[string]schema{"spec": {Type: "object",
		Properties: map[string]schema{"texts": list(text), "maps": byName(listed), "deep": list(byName(list(text))),
			"unique": unique}},
		"status": {Type: "object", Properties: map[string]schema{"texts": list(text)}}}}
	return &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1",
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &root},
			Subresources: &apiextensionsv1.CustomResourceSubresources{
				Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}}}}}
}

// The errors of the pieces of an object are those that the library finds for the whole object.
func TestPiecesAgainstLibrary(t *testing.T) {
	p, err := piecesOf(nested(), "v1")
	if err != nil {
		t.Fatal(err)
	}
	p.size = 3
	rng := rand.New(rand.NewPCG(1, 0))
	text := func() any { return []any{"x", "long text", int64(1), nil, map[string]any{}}[rng.IntN(5)] }
	list := func(of func() any) any {
		all := make([]any, rng.IntN(6))
		for i := range all {
			all[i] = of()
		}
		return all
	}
	byName := func(of func() any) any {
		all := map[string]any{}
		for i := range rng.IntN(4) {
			all[fmt.Sprint("k", i)] = of()
		}
		return all
	}
	leaf := func() any {
		o := map[string]any{"n": int64(rng.IntN(9))}
		for _, k := range []string{"a", "b"} {
			if rng.IntN(2) == 0 {
				o[k] = text()
			}
		}
		return o
	}
	found := 0
	for range 2000 {
		object := map[string]any{"spec": map[string]any{"texts": list(text),
			"maps": byName(func() any { return list(leaf) }),
			"deep": list(func() any { return byName(func() any { return list(text) }) })}}
		var got, want []string
		for _, e := range p.validate(t.Context(), object, "") {
			got = append(got, e.Error())
		}
		whole := validation.NewSchemaValidatorFromOpenAPI(p.schema)
		for _, e := range validation.ValidateCustomResource(nil, object, whole) {
			want = append(want, e.Error())
		}
		// The library also says where all of several schemas are required.
		more, less := sets.New(got...).Difference(sets.New(want...)), sets.New(want...).Difference(sets.New(got...))
		for e := range less {
			if !strings.Contains(e, "must validate all the schemas") {
				t.Errorf("not found: %s", e)
			}
		}
		if found += len(got); len(more) > 0 || t.Failed() {
			t.Fatalf("%v: found %v", object, more)
		}
	}
	if found == 0 {
		t.Error("all objects are valid")
	}
}

// The look at an object ends with the first errors that are too many, in whichever part they are.
func TestLookEnds(t *testing.T) {
	p, err := piecesOf(nested(), "v1")
	if err != nil {
		t.Fatal(err)
	}
	const n = 30_000
	numbers, texts, same := make([]any, n), make([]any, n), make([]any, n)
	many, each := map[string]any{}, make([]any, n/10)
	for i := range n {
		numbers[i], texts[i], same[i] = int64(i), "x", fmt.Sprint(i/2)
		many[fmt.Sprint(i)] = "a text"
	}
	for i := range each {
		each[i] = map[string]any{}
	}
	spec := func(name string, value any) map[string]any {
		return map[string]any{"spec": map[string]any{name: value}}
	}
	status := map[string]any{"status": map[string]any{"texts": numbers}}
	for name, c := range map[string]struct {
		object      map[string]any
		subresource string
		flood       bool
	}{
		"numbers": {spec("texts", numbers), "", true}, "valid texts": {spec("texts", texts), "", false},
		"a map": {spec("maps", many), "", true}, "missing fields": {spec("maps", map[string]any{"k": each}), "", true},
		"nested":           {spec("deep", []any{map[string]any{"k": numbers}}), "", true},
		"twice":            {spec("unique", same), "", true},
		"the status":       {status, "status", true},
		"another's status": {status, "", false},
	} {
		if got := len(p.validate(t.Context(), c.object, c.subresource)); (got > registry.MaxErrors) != c.flood ||
			name != "twice" && got > 2*mostAtOnce {
			t.Errorf("%s: %d errors", name, got)
		}
	}
}
