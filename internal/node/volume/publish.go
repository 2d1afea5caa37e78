package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"carob/internal/base/removetree"
)

// Names in a volume whose content the agent writes:
//
//	..2026_11_21_09_30_00.123456789/   one complete version
//	..data -> ..2026_…                 swapped by rename, so readers see one version or the other
//	key    -> ..data/key               one for each first step of a path
const (
	dataLink    = "..data"
	newDataLink = "..data_tmp"
	versionTime = "..2006_01_02_15_04_05.000000000"
)

// owner is the group that may read a written volume, in addition to root.
type owner struct{ gid *int64 } // fsGroup

// publish makes the content of dir exactly the payload, in one atomic step, and reports whether anything had to change.
func publish(dir string, content payload, own owner, now time.Time) (changed bool, err error) {
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	switch {
	case err == nil && shows(filepath.Join(dir, filepath.Base(old)), content, own):
		return false, link(dir, content) // a crash may have come between the swap and the links
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	version := now.UTC().Format(versionTime)
	for i := 1; ; i++ {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err == nil {
			break
		} else if !errors.Is(err, fs.ErrExist) {
			return false, err
		}
		version = fmt.Sprintf("%s_%d", now.UTC().Format(versionTime), i)
	}
	if err := writeAll(filepath.Join(dir, version), content, own); err != nil {
		return false, errors.Join(err, os.RemoveAll(filepath.Join(dir, version)))
	}
	tmp := filepath.Join(dir, newDataLink)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := os.Symlink(version, tmp); err != nil {
		return false, err
	}
	if err := os.Rename(tmp, filepath.Join(dir, dataLink)); err != nil {
		return false, err
	}
	if err := link(dir, content); err != nil {
		return true, err
	}
	return true, sweep(dir, version)
}

// shows reports whether a version has exactly this content.
func shows(version string, content payload, own owner) bool {
	seen := 0
	err := filepath.WalkDir(version, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(version, path)
		if d.IsDir() {
			return nil
		}
		want, ok := content[rel]
		info, err := d.Info()
		if err != nil || !ok || uint32(info.Mode().Perm()) != own.mode(want.mode) ||
			info.Size() != int64(len(want.data)) {
			return fs.ErrInvalid
		}
		have, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(have, want.data) {
			return fs.ErrInvalid
		}
		seen++
		return nil
	})
	return err == nil && seen == len(content)
}

// mode adds the permission bits that fsGroup needs to read.
func (o owner) mode(mode uint32) uint32 {
	if o.gid != nil {
		mode |= 0o440
	}
	return mode
}

func writeAll(version string, content payload, own owner) error {
	dirs := map[string]bool{".": true}
	for _, path := range slices.Sorted(maps.Keys(content)) {
		f := content[path]
		full := filepath.Join(version, path)
		if parent := filepath.Dir(path); !dirs[parent] {
			if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
				return err
			}
			for d := parent; !dirs[d]; d = filepath.Dir(d) {
				dirs[d] = true
			}
		}
		if err := os.WriteFile(full, f.data, 0o600); err != nil {
			return err
		}
		if err := own.apply(full, f.uid, own.mode(f.mode)); err != nil {
			return err
		}
	}
	for d := range dirs {
		if err := own.apply(filepath.Join(version, d), 0, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// apply sets the owner of a file or directory and then its mode, because chown may clear bits.
func (o owner) apply(path string, uid int, mode uint32) error {
	if uid != 0 || o.gid != nil {
		gid := -1
		if o.gid != nil {
			gid = int(*o.gid)
		}
		if err := os.Chown(path, uid, gid); err != nil {
			return err
		}
	}
	return os.Chmod(path, fs.FileMode(mode))
}

// link makes the links that users see and removes those whose path is gone. Directories that were made for subPaths
// stay until a key needs their name: containers may use them again.
func link(dir string, content payload) error {
	want := make(map[string]bool, len(content))
	for path := range content {
		head, _, _ := strings.Cut(path, "/")
		want[head] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasPrefix(name, ".."):
		case want[name] && e.Type() == fs.ModeSymlink:
			delete(want, name)
		case want[name] || !e.IsDir():
			if err := removetree.All(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	for name := range want {
		if err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes older versions, also those that a crash left.
func sweep(dir, keep string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() && strings.HasPrefix(name, "..") && name != keep {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
		}
	}
	return errors.Join(errs...)
}
