package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"carob/internal/base/atomicfile"
	"carob/internal/base/instance"
)

// flagsFile remembers how an instance was started, for `carob down --pods` after it ended.
const flagsFile = "flags.json"

func saveFlags(in instance.Instance) error {
	b, err := json.Marshal(in.Flags)
	if err != nil {
		return fmt.Errorf("encode flags: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(in.DataDir, flagsFile), b, 0o600); err != nil {
		return fmt.Errorf("remember flags: %w", err)
	}
	return nil
}

// lastFlags is the instance as it was started last.
func lastFlags(in instance.Instance) (instance.Instance, error) {
	b, err := os.ReadFile(filepath.Join(in.DataDir, flagsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return in, nil
	}
	if err != nil {
		return in, fmt.Errorf("read flags of the last start: %w", err)
	}
	var f instance.Flags
	if err := json.Unmarshal(b, &f); err != nil {
		return in, fmt.Errorf("read flags of the last start: %w", err)
	}
	return instance.Derive(f, in.NodeName)
}
