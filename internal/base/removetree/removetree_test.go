package removetree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Directories that are too deep are moved to the top, whatever names a container has given to directories there.
func TestForeseenNames(t *testing.T) {
	top := filepath.Join(t.TempDir(), "volume")
	for i := range 20 {
		deep := filepath.Join(top, fmt.Sprintf("a%d", i), strings.Repeat("d/", maxDepth+2))
		taken := filepath.Join(top, fmt.Sprintf(".carob-deep-%d", i), "full")
		if err := errors.Join(os.MkdirAll(deep, 0o755), os.MkdirAll(taken, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := All(top); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// steps is a context that ends when it was asked a number of times.
type steps struct {
	context.Context //nolint:containedctx // it is one

	left int
}

func (s *steps) Err() error {
	if s.left--; s.left < 0 {
		return context.Canceled
	}
	return nil
}

// A removal ends with its context, and can be continued.
func TestWhile(t *testing.T) {
	top := filepath.Join(t.TempDir(), "volume")
	const dirs, files = 10, 30
	for d := range dirs {
		dir := filepath.Join(top, fmt.Sprint(d))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range files {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(f)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const all = dirs*(files+1) + 1
	for _, n := range []int{0, 1, 5, 100} {
		if err := While(&steps{t.Context(), n}, top); !errors.Is(err, context.Canceled) {
			t.Fatalf("ended after %d steps with %v", n, err)
		}
		if _, err := os.Lstat(top); err != nil {
			t.Fatalf("after %d steps: %v", n, err)
		}
	}
	if err := While(&steps{t.Context(), all}, top); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
