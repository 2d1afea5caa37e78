package admission

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"
)

// Size refuses custom resources that are longer than a request may be: they cannot be stored. Defaults are set before,
// in each item of a list, so that a request of a few kilobytes becomes gigabytes where the object is encoded, for
// webhooks, for the store, or for the answer to a dry run.
type Size struct{ Most int64 }

// Handles implements admission.Interface.
func (Size) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// Admit implements admission.MutationInterface.
func (s Size) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	o, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok || jsonLeft(o.Object, s.Most) >= 0 {
		return nil
	}
	return errors.NewRequestEntityTooLargeError(fmt.Sprintf(
		"limit is %d, which %s %q exceeds with the defaults of its definition", s.Most, a.GetKind().Kind, a.GetName()))
}

// jsonLeft returns what is left of a number of bytes after v, which takes at least so many in JSON; it stops when
// nothing is left.
func jsonLeft(v any, left int64) int64 {
	const quotes, braces, separator = 2, 2, 1
	switch at := v.(type) {
	case map[string]any:
		left -= braces
		for k, v := range at {
			if left = jsonLeft(v, left-int64(len(k))-quotes-separator); left < 0 {
				break
			}
		}
	case []any:
		left -= braces
		for _, v := range at {
			if left = jsonLeft(v, left); left < 0 {
				break
			}
		}
	case string:
		left -= int64(len(at)) + quotes
	default:
		left--
	}
	return left
}
