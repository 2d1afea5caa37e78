package confirm

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Only a newer version, or that the object is gone, excuses a write that was answered with Conflict or NotFound.
func TestOvertaken(t *testing.T) {
	pod := func(uid, version string) metav1.Object {
		return &metav1.ObjectMeta{Name: "p", UID: types.UID(uid), ResourceVersion: version}
	}
	gone := apierrors.NewNotFound(corev1.Resource("pods"), "p")
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("no"))
	other := errors.New("no connection")
	for name, tc := range map[string]struct {
		err, failed error
		stored      metav1.Object
		want        error
	}{
		"written":               {nil, other, nil, nil},
		"another error":         {other, nil, pod("u", "2"), other},
		"a newer version":       {conflict, nil, pod("u", "2"), nil},
		"another object":        {conflict, nil, pod("v", "1"), nil},
		"gone":                  {gone, gone, nil, nil},
		"a webhook's Conflict":  {conflict, nil, pod("u", "1"), conflict},
		"a webhook's NotFound":  {gone, nil, pod("u", "1"), gone},
		"it cannot be read now": {conflict, other, nil, other},
	} {
		got := Overtaken(t.Context(), pod("u", "1"), tc.err,
			func(context.Context) (metav1.Object, error) { return tc.stored, tc.failed })
		if !errors.Is(got, tc.want) || (got == nil) != (tc.want == nil) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestEndedRemoved(t *testing.T) {
	pod := func(uid string) *metav1.ObjectMeta { return &metav1.ObjectMeta{Name: "p", UID: types.UID(uid)} }
	ending := pod("u")
	ending.DeletionTimestamp = new(metav1.Now())
	gone := apierrors.NewNotFound(corev1.Resource("pods"), "p")
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("no"))
	other := errors.New("no connection")
	for name, tc := range map[string]struct {
		err, failed    error
		stored         metav1.Object
		ended, removed error
	}{
		"deleted":               {nil, other, nil, nil, nil},
		"another error":         {other, gone, nil, other, other},
		"deleted before":        {gone, gone, nil, nil, nil},
		"another object":        {conflict, nil, pod("v"), nil, nil},
		"it ends already":       {gone, nil, ending, nil, gone},
		"a webhook's Conflict":  {conflict, nil, pod("u"), conflict, conflict},
		"a webhook's NotFound":  {gone, nil, pod("u"), gone, gone},
		"it cannot be read now": {conflict, other, nil, other, other},
	} {
		live := func(context.Context) (metav1.Object, error) { return tc.stored, tc.failed }
		for what, c := range map[string]struct{ got, want error }{
			"ended":   {Ended(t.Context(), "u", tc.err, live), tc.ended},
			"removed": {Removed(t.Context(), "u", tc.err, live), tc.removed},
		} {
			if !errors.Is(c.got, c.want) || (c.got == nil) != (c.want == nil) {
				t.Errorf("%s, %s: %v, want %v", name, what, c.got, c.want)
			}
		}
	}
}

// Only an answer that refuses a write says that nothing was written.
func TestUnclear(t *testing.T) {
	pods := corev1.Resource("pods")
	for err, want := range map[error]bool{
		errors.New("no connection"):                                       true,
		context.DeadlineExceeded:                                          true,
		apierrors.NewInternalError(errors.New("no")):                      true,
		apierrors.NewTimeoutError("no", 1):                                true,
		&apierrors.StatusError{ErrStatus: metav1.Status{Code: 408}}:       true,
		&apierrors.StatusError{}:                                          true,
		apierrors.NewConflict(pods, "p", errors.New("no")):                false,
		apierrors.NewForbidden(pods, "p", errors.New("no")):               false,
		fmt.Errorf("write: %w", apierrors.NewNotFound(pods, "p")):         false,
		fmt.Errorf("write: %w", apierrors.NewTooManyRequests("later", 1)): false,
	} {
		if got := Unclear(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}
