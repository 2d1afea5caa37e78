package crds

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"

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
		errs, _ := p.validate(t.Context(), object, "")
		for _, e := range errs {
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
		errs, hidden := p.validate(t.Context(), c.object, c.subresource)
		if got := len(errs); (got > registry.MaxErrors) != c.flood || name != "twice" && got > 2*mostAtOnce || hidden {
			t.Errorf("%s: %d errors", name, got)
		}
	}
}

type listSchema = apiextensionsv1.JSONSchemaProps

// alternatives is a definition whose list must match alternatives; change sets them.
func alternatives(change func(list *listSchema, least func(float64) listSchema),
) *apiextensionsv1.CustomResourceDefinition {
	type schema = listSchema
	list := schema{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &schema{Type: "integer"}}}
	change(&list, func(n float64) schema {
		return schema{Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &schema{Minimum: &n}}}
	})
	root := schema{Type: "object", Properties: map[string]schema{"spec": {Type: "object",
		Properties: map[string]schema{"list": list}}}}
	return &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1",
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &root}}}}}
}

// A list of numbers that match one alternative of a schema, and not another one: the library would compare all
// errors of that one with each other. It is found out before. A list with few such numbers is left to it.
func TestErrorsOfAlternatives(t *testing.T) {
	type schema = apiextensionsv1.JSONSchemaProps
	many, few := make([]any, 50_000), make([]any, 5_000)
	for i := range many {
		many[i] = int64(i)
	}
	for i := range few {
		few[i] = int64(200_000)
	}
	few[7] = int64(3)
	for name, change := range map[string]func(*schema, func(float64) schema){
		"anyOf": func(s *schema, least func(float64) schema) { s.AnyOf = []schema{least(1e5), least(0)} },
		"oneOf": func(s *schema, least func(float64) schema) { s.OneOf = []schema{least(0), least(1e5)} },
		"not":   func(s *schema, least func(float64) schema) { n := least(1e5); s.Not = &n },
		"nested": func(s *schema, least func(float64) schema) {
			s.AllOf = []schema{{AnyOf: []schema{{OneOf: []schema{least(1e5)}}, least(0)}}}
		},
		"many": func(s *schema, least func(float64) schema) {
			for i := range 20 {
				s.AnyOf = append(s.AnyOf, least(float64(1000+i))) // 1,000 errors each
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := piecesOf(alternatives(change), "v1")
			if err != nil {
				t.Fatal(err)
			}
			object := func(list []any) map[string]any { return map[string]any{"spec": map[string]any{"list": list}} }
			if errs, hidden := p.validate(t.Context(), object(many), ""); !hidden || len(errs) > 0 {
				t.Errorf("many: %d errors, %v", len(errs), hidden)
			}
			if errs, hidden := p.validate(t.Context(), object(few), ""); hidden || len(errs) > 0 {
				t.Errorf("few: %d errors, %v", len(errs), hidden)
			}
		})
	}
}

// A request that has ended does not begin the library's validation, which nothing ends.
func TestValidationThatTakesTooLong(t *testing.T) {
	d := alternatives(func(*listSchema, func(float64) listSchema) {})
	l := newErrorLimit(nothing{}, func(string) (*apiextensionsv1.CustomResourceDefinition, error) { return d, nil })
	list := make([]any, 2*mostAtOnce)
	for i := range list {
		list[i] = int64(i)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"list": list}}}
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "List"}
	admit := func(ctx context.Context) error {
		return l.Admit(ctx, admission.NewAttributesRecord(object, nil, kind, "ns", "l",
			kind.GroupVersion().WithResource("lists"), "", admission.Create, nil, false, nil), nil)
	}
	if err := admit(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := admit(ctx); !apierrors.IsTimeout(err) {
		t.Errorf("%v", err)
	}
}

// nothing is an admission chain without plugins.
type nothing struct{}

func (nothing) Handles(admission.Operation) bool { return false }

// One small object may have very many errors by a schema: by one value for each of very many branches, or for fields
// that are missing. They are not compared with each other; what is valid is accepted.
func TestManyErrorsOfOneValue(t *testing.T) {
	const n = 20_000
	branches := func() (all []listSchema) {
		for i := range n {
			all = append(all, listSchema{Maximum: new(float64(i))})
		}
		return all
	}
	var names []string
	all := map[string]any{}
	for i := range n {
		names = append(names, fmt.Sprint("f", i))
		all[names[i]] = int64(1)
	}
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Value"}
	for name, c := range map[string]struct {
		of             listSchema
		invalid, valid any
	}{
		"allOf":         {listSchema{Type: "integer", AllOf: branches()}, int64(n), int64(-1)},
		"allOf, inside": {listSchema{AllOf: []listSchema{{AllOf: branches()}}, Type: "integer"}, int64(n), int64(-1)},
		"anyOf":         {listSchema{Type: "integer", AnyOf: []listSchema{{AllOf: branches()}}}, int64(n), int64(-1)},
		"required": {listSchema{Type: "object", Required: names,
			XPreserveUnknownFields: new(true)}, map[string]any{}, all},
	} {
		t.Run(name, func(t *testing.T) {
			root := listSchema{Type: "object", Properties: map[string]listSchema{"spec": c.of}}
			d := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1",
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &root}}}}}
			get := func(string) (*apiextensionsv1.CustomResourceDefinition, error) { return d, nil }
			l := newErrorLimit(nothing{}, get)
			admit := func(value any) error {
				object := &unstructured.Unstructured{Object: map[string]any{"spec": value}}
				return l.Admit(t.Context(), admission.NewAttributesRecord(object, nil, kind, "ns", "v",
					kind.GroupVersion().WithResource("values"), "", admission.Create, nil, false, nil), nil)
			}
			if err := admit(c.invalid); !apierrors.IsInvalid(err) {
				t.Errorf("of an object with very many errors: %v", err)
			}
			if err := admit(c.valid); err != nil {
				t.Errorf("of a valid object: %v", err)
			}
			p, err := l.of("values.example.com", "v1")
			if err != nil {
				t.Fatal(err)
			}
			errs, hidden := p.validate(t.Context(), map[string]any{"spec": c.invalid}, "")
			if !hidden && (len(errs) <= registry.MaxErrors || len(errs) > 2*mostAtOnce) {
				t.Errorf("%d errors are looked for", len(errs))
			}
		})
	}
}
