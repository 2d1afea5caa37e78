package partiallist

import (
	"context"
	"errors"
	"reflect"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func failure(causes ...metav1.StatusCause) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonStoreReadError,
		Details: &metav1.StatusDetails{Causes: causes}}}
}

func unread(key string) metav1.StatusCause {
	return metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Field: key}
}

// A list without the objects that cannot be read is requested only if the error names all of these.
func TestList(t *testing.T) {
	bad := []types.NamespacedName{{Namespace: "default", Name: "bad"}}
	for _, c := range []struct {
		name  string
		err   error
		names []types.NamespacedName
		lists int
	}{
		{"readable", nil, nil, 1},
		{"unreadable", failure(unread("/registry/services/specs/default/bad")), bad, 2},
		{"too many", failure(unread("/registry/pods/default/bad"),
			metav1.StatusCause{Type: metav1.CauseTypeTooMany}), nil, 1},
		{"no name", failure(unread("")), nil, 1},
		{"a strange key", failure(unread("bad")), nil, 1},
		{"no causes", failure(), nil, 1},
		{"no details", &apierrors.StatusError{ErrStatus: metav1.Status{
			Reason: metav1.StatusReasonStoreReadError}}, nil, 1},
		{"another error", errors.New("refused"), nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			lists := 0
			out, names, err := List(t.Context(), func(ctx context.Context) (string, error) {
				lists++
				if Accepted(ctx) != (lists == 2) {
					t.Errorf("list %d: partial %v", lists, Accepted(ctx))
				}
				if Accepted(ctx) {
					return "rest", nil
				}
				return "all", c.err
			})
			if lists != c.lists || !reflect.DeepEqual(names, c.names) || (err == nil) != (c.err == nil || lists == 2) ||
				(out == "rest") != (lists == 2) {
				t.Errorf("%d lists: %q, %v, %v", lists, out, names, err)
			}
		})
	}
}
