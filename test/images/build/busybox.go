package build

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// listApplets gets the list from the program itself.
func (b *Builder) listApplets(ctx context.Context, program []byte) ([]string, error) {
	tmp, err := os.MkdirTemp(b.Dir, ".build-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	file := filepath.Join(tmp, "busybox")
	if err := os.WriteFile(file, program, 0o700); err != nil {
		return nil, err
	}
	out, err := run(ctx, tmp, file, "--list")
	return strings.Fields(string(out)), err
}
