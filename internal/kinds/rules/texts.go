package rules

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// OneOf validates a required field against its values, which the error lists in their order.
func OneOf(value string, path *field.Path, values ...string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return Supported(value, path, values...)
}

// Supported validates a field against its values; the empty value is invalid.
func Supported(value string, path *field.Path, values ...string) field.ErrorList {
	if slices.Contains(values, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, values)}
}

// Messages makes an error from each message about one value.
func Messages(path *field.Path, value any, msgs []string) field.ErrorList {
	var errs field.ErrorList
	for _, m := range msgs {
		errs = append(errs, field.Invalid(path, value, m))
	}
	return errs
}

// Required rejects an empty string.
func Required(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return nil
}
