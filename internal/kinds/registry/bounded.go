package registry

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxErrors and maxErrorBytes bound the errors of one answer. An object of the largest size may have a million errors,
// and each may quote a large part of it: the answer would have hundreds of MB.
const (
	MaxErrors     = 1000
	maxErrorBytes = 1 << 20
)

// Bounded returns the first errors, at least one, and how many are left out.
func Bounded(errs field.ErrorList) field.ErrorList {
	size := 0
	for i, e := range errs {
		if i < MaxErrors {
			size += len(e.Field) + len(e.ErrorBody())
		}
		if i > 0 && (i >= MaxErrors || size > maxErrorBytes) {
			return append(errs[:i:i], field.InternalError(nil, fmt.Errorf("%d more errors are not shown", len(errs)-i)))
		}
	}
	return errs
}
