package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"carob/internal/base/errkind"
)

// checkFiles returns what is damaged in the directory of a member (the error has the kind Corrupt),
// and whether the member was ever written to. It writes nothing.
//
// etcd opens damaged files: a log that it truncates at a damaged place, and one that ends before
// the state of the database, after which it considers every write as already applied and answers
// none. A damaged database crashes the process. So its files are checked first.
func checkFiles(dir string) (state memberState, err error) {
	// A part of a mapped file that cannot be read is a fault.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = errkind.Errorf(errkind.Corrupt, "a file in %s cannot be read: %v", dir, r)
		}
	}()
	stored, err := checkDatabase(filepath.Join(dir, "member", "snap", "db"))
	if err != nil {
		return memberUsed, err
	}
	log, err := readLog(filepath.Join(dir, "member", "wal"))
	if err != nil {
		return memberUsed, err
	}
	switch {
	case log.last < stored:
		return memberUsed, errkind.Errorf(errkind.Corrupt,
			"the log ends at entry %d, but the database has entry %d: the end of the log is lost, "+
				"or log and database are copies from different times", log.last, stored)
	case log.first > stored+1:
		return memberUsed, errkind.Errorf(errkind.Corrupt,
			"the log begins at entry %d, but the database ends at entry %d: it is too old or lost", log.first, stored)
	}
	return stateOf(stored, log), nil
}

// mapFile returns the content of a file, for reading until unmap is called; nil for an empty file.
func mapFile(path string) (b []byte, unmap func(), err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("look for damage: %w", err)
	}
	defer f.Close()
	size, err := written(f)
	if err != nil || size == 0 {
		return nil, func() {}, err
	}
	if b, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, nil, fmt.Errorf("look for damage: map %s: %w", path, err)
	}
	return b, func() { _ = unix.Munmap(b) }, nil
}

// written returns where the data in a file ends: the space of a log is allocated long before.
func written(f *os.File) (end int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("look for damage: %w", err)
	}
	for end < info.Size() {
		data, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		if err == nil {
			end, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		}
		switch {
		case errors.Is(err, unix.ENXIO):
			return end, nil // only allocated space
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
			return info.Size(), nil // the file system does not know
		case err != nil:
			return 0, fmt.Errorf("look for damage: %w", err)
		}
	}
	return end, nil
}
