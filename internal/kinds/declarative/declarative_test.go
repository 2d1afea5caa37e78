package declarative_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"carob/internal/base/testwait"
	"carob/internal/kinds/declarative"
	"carob/internal/kinds/scheme"
)

// The rules of every kind run on an object alone and as an update of itself, without a panic or an
// unknown feature gate.
func TestEveryKind(t *testing.T) {
	set, err := scheme.New(declarative.Register)
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for gvk := range set.External.AllKnownTypes() {
		obj, err := set.External.New(gvk)
		if err != nil || !set.Scheme.HasValidationFunc(obj) || strings.HasSuffix(gvk.Kind, "List") {
			continue
		}
		checked++
		for _, errs := range []field.ErrorList{declarative.Check(t.Context(), set.Scheme, nil, obj, nil, ""),
			declarative.Check(t.Context(), set.Scheme, nil, obj, obj.DeepCopyObject(), "")} {
			for _, e := range errs {
				if e.Type == field.ErrorTypeInternal {
					t.Errorf("%v: %v", gvk, e)
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d kinds have declared rules", checked)
	}
}

// An error found by both kinds of rules is reported once, with the message of the declared rule.
func TestErrorsAreReportedOnce(t *testing.T) {
	set, err := scheme.New(declarative.Register)
	if err != nil {
		t.Fatal(err)
	}
	var obj runtime.Object = &networkingv1.IPAddress{}
	at := field.NewPath("spec", "parentRef")
	if got := declarative.Check(t.Context(), set.Scheme, nil, obj, nil, ""); len(got) != 1 ||
		got[0].Field != at.String() || got[0].Type != field.ErrorTypeRequired {
		t.Fatalf("got %v, want that %s is required", got, at)
	}
	if got := declarative.Check(t.Context(), set.Scheme, field.ErrorList{field.Required(at, "by hand")}, obj, nil,
		""); len(got) != 1 || got[0].Detail == "by hand" {
		t.Errorf("got %v, want the declared error alone", got)
	}
}

// An object with very many errors, which fills a request, does not keep the API server busy for minutes.
func TestManyErrors(t *testing.T) {
	var found field.ErrorList
	for i := range 50_000 {
		found = append(found, field.Required(field.NewPath("list").Index(i), ""),
			field.Invalid(field.NewPath("names"), fmt.Sprintf("name%d", i), "bad"))
	}
	var got field.ErrorList
	took := testwait.Processor(t, func() {
		got = declarative.Once{}.ValidateDeclaratively(t.Context(), nil, nil, append(found, found...), 0,
			rest.DeclarativeValidationConfig{})
	})
	if len(got) != len(found) || took > 5*time.Second {
		t.Errorf("%d errors of %d after %v", len(got), len(found), took)
	}
}

// Errors with values that cannot be compared with == are reported once, too.
func TestValuesOfErrors(t *testing.T) {
	at := field.NewPath("x")
	once := field.ErrorList{field.Invalid(at, []string{"a"}, "bad"), field.Invalid(at, []string{"b"}, "bad"),
		field.Invalid(at, nil, "bad"), field.Invalid(at, "a", "bad"), field.Invalid(at, 1, "bad"),
		field.Invalid(at, int32(1), "bad"), field.Invalid(at, new("a"), "bad")}
	again := field.ErrorList{field.Invalid(at, []string{"a"}, "bad"), field.Invalid(at, nil, "bad"),
		field.Invalid(at, "a", "bad"), field.Invalid(at, 1, "bad"), field.Invalid(at, new("a"), "bad")}
	got := declarative.Once{}.ValidateDeclaratively(t.Context(), nil, nil, append(once, again...), 0,
		rest.DeclarativeValidationConfig{})
	if len(got) != len(once) {
		t.Errorf("%v, not %v", got, once)
	}
}
