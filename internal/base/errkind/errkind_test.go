package errkind_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"carob/internal/base/errkind"
)

func TestKindOfAnError(t *testing.T) {
	inner := errkind.Errorf(errkind.Exhausted, "write: %w", io.ErrShortWrite)
	for _, tc := range []struct {
		name string
		err  error
		want errkind.Kind
	}{
		{"nil", nil, errkind.Unknown},
		{"plain", io.EOF, errkind.Unknown},
		{"direct", inner, errkind.Exhausted},
		{"wrapped", fmt.Errorf("start: %w", inner), errkind.Exhausted},
		{"outermost wins", errkind.Errorf(errkind.Unavailable, "start: %w", inner), errkind.Unavailable},
		{"joined", errors.Join(io.EOF, inner), errkind.Exhausted},
	} {
		if got := errkind.Of(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	if !errors.Is(inner, io.ErrShortWrite) || inner.Error() != "write: short write" {
		t.Errorf("the kind hides the error: %v", inner)
	}
	if errkind.Is(nil, errkind.Unknown) {
		t.Error("nil is an error")
	}
}
