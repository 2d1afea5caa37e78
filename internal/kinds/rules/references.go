package rules

import (
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ObjectReference validates a reference to an object of any group.
func ObjectReference(group *string, kind, name string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if group != nil {
		errs = append(errs, Messages(at.Child("apiGroup"), *group, validation.IsDNS1123Subdomain(*group))...)
	}
	for _, f := range []struct{ name, value string }{{"kind", kind}, {"name", name}} {
		if f.value == "" {
			errs = append(errs, field.Required(at.Child(f.name), ""))
		} else {
			errs = append(errs, Messages(at.Child(f.name), f.value, content.IsPathSegmentName(f.value))...)
		}
	}
	return errs
}
