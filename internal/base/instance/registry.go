package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"carob/internal/base/atomicfile"
)

// RegistryDir has a file for each carob on this machine, running or not, with its data directory.
const RegistryDir = "/var/lib/carob-instances"

// registered is the content of such a file, ID.json.
type registered struct {
	DataDir string `json:"dataDir"`
}

// Register adds an instance to List, and removes those whose data directory is gone.
func Register(dir string, in Instance) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("register this carob: %w", err)
	}
	b, err := json.Marshal(registered{in.DataDir})
	if err != nil {
		return fmt.Errorf("register this carob: %w", err)
	}
	// The list is readable for everybody; the data directories themselves are not.
	if err := atomicfile.WriteUnsynced(filepath.Join(dir, in.ID+".json"), append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("register this carob: %w", err)
	}
	_, err = list(dir, true)
	return err
}

// List returns the data directories of all registered instances that still exist, sorted.
func List(dir string) ([]string, error) { return list(dir, false) }

func list(dir string, prune bool) ([]string, error) {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the clusters on this machine: %w", err)
	}
	var dirs []string
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".json") || strings.HasPrefix(f.Name(), ".") {
			continue
		}
		var r registered
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		if err != nil || !filepath.IsAbs(r.DataDir) { // incomplete after a power failure; its carob writes it again
			continue
		}
		if _, err := os.Stat(r.DataDir); errors.Is(err, fs.ErrNotExist) {
			if prune {
				_ = os.Remove(filepath.Join(dir, f.Name())) // or at the next start
			}
			continue
		}
		dirs = append(dirs, r.DataDir)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}
