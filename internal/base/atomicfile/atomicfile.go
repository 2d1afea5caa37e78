// Package atomicfile replaces files atomically: a reader, or the next start after a crash, sees
// either the old or the new content, never a part of both. Any package may import it; it must never
// follow symbolic links or create directories.
package atomicfile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces name with data, through a synced temporary file in the same directory and a
// rename, and syncs the directory. When Write returns, the new content survives a power failure.
// perm is set exactly, whatever the umask.
func Write(name string, data []byte, perm fs.FileMode) error {
	if err := replace(name, data, perm, true); err != nil {
		return err
	}
	return syncDir(filepath.Dir(name))
}

// WriteUnsynced is Write without waiting for the disk: after a power failure the file may have the
// old content or be damaged. It is for content that can be created again.
func WriteUnsynced(name string, data []byte, perm fs.FileMode) error {
	return replace(name, data, perm, false)
}

func replace(name string, data []byte, perm fs.FileMode, sync bool) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close() // the first error shows the cause
			_ = os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", name, err)
		}
	}()
	if err := f.Chmod(perm); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if sync {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
