package declarative_test

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

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
