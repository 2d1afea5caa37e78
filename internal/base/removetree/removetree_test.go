package removetree

import (
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
