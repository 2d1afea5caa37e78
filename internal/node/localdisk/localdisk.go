// Package localdisk keeps the data of local volumes: a directory, or a file for a block device, for
// each, directly below a base directory that only root can enter. The provisioner of the local class
// calls it. It follows no link that a container could have made, and touches nothing outside of its bases.
//
// Contract: S3.B in docs/spec/storage-and-node.md.
package localdisk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"carob/internal/core/volume"
	nodevolume "carob/internal/node/volume"
)

// How the size of a volume is limited: values of its annotation carob.dev/size-limit.
const (
	ByQuota   = "project-quota" // the file system refuses to store more
	ByFile    = "file"          // the file behind the block device is no larger
	ByNothing = "none"          // the file system has no project quotas
)

// inside makes openat2 fail if a path leads out of its directory.
const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

// Disk implements the Disk of controllers/localpath.
type Disk struct {
	bases []string

	mu sync.Mutex // a place is made or resized: no two places get the same project
}

// New returns the disk with these base directories, absolute paths; they are made when the first volume is.
func New(bases ...string) (*Disk, error) {
	d := &Disk{}
	for _, b := range bases {
		if b = filepath.Clean(b); !filepath.IsAbs(b) || b == "/" {
			return nil, fmt.Errorf("local storage path %q: give an absolute path other than /", b)
		}
		if !slices.Contains(d.bases, b) {
			d.bases = append(d.bases, b)
		}
	}
	return d, nil
}

// Bases returns the base directories.
func (d *Disk) Bases() []string { return d.bases }

// open opens a base directory; the path of the base is the administrator's and may contain links.
func open(base string) (int, error) {
	fd, err := unix.Open(base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: base, Err: err}
	}
	return fd, nil
}

// check refuses what is not a name of one step below one of the bases.
func (d *Disk) check(p volume.LocalPlace) error {
	if !strings.HasPrefix(p.Name, "pvc-") || len(p.Name) > 255 || strings.ContainsAny(p.Name, "/\x00") {
		return fmt.Errorf("invalid name of a volume's directory: %q", p.Name)
	}
	if p.Base != "" && !slices.Contains(d.bases, p.Base) {
		return fmt.Errorf("%q is none of the local storage paths of this node: %s", p.Base, strings.Join(d.bases, ", "))
	}
	if p.Size < 0 {
		return fmt.Errorf("invalid size %d", p.Size)
	}
	return nil
}

// Make makes the directory or file of a volume.
func (d *Disk) Make(ctx context.Context, p volume.LocalPlace) (path, limit string, err error) {
	if err := d.check(p); err != nil {
		return "", "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	bases := []string{p.Base}
	if p.Base == "" {
		if bases, err = d.choose(p.Name); err != nil {
			return "", "", err
		}
	} else if err := os.MkdirAll(p.Base, 0o700); err != nil {
		return "", "", err
	}
	var errs []error
	for _, base := range bases {
		p.Base = base
		path = filepath.Join(base, p.Name)
		if limit, err = d.makeIn(p); err == nil {
			return path, limit, ctx.Err()
		}
		errs = append(errs, &os.PathError{Op: "make volume", Path: path, Err: err})
	}
	return "", "", errors.Join(errs...)
}

// makeIn makes the directory or file of a volume in its base.
func (d *Disk) makeIn(p volume.LocalPlace) (limit string, err error) {
	base, err := open(p.Base)
	if err != nil {
		return "", err
	}
	defer unix.Close(base)
	if p.Block {
		return ByFile, makeFile(base, p)
	}
	return d.makeDir(base, p)
}

// choose returns the base in which a place was made before, else those that can take a volume, the one with the most
// free space first. A base that cannot, because its disk is read-only, full, or gone, is passed over.
func (d *Disk) choose(name string) ([]string, error) {
	var usable []string
	free := map[string]uint64{}
	errs := []error{errors.New("this node has no usable local storage path")}
	for _, b := range d.bases {
		if _, err := os.Lstat(filepath.Join(b, name)); err == nil {
			return []string{b}, nil
		}
		n, err := room(b)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		usable, free[b] = append(usable, b), n
	}
	if len(usable) == 0 {
		return nil, errors.Join(errs...)
	}
	slices.SortStableFunc(usable, func(a, b string) int { return cmp.Compare(free[b], free[a]) })
	return usable, nil
}

// room returns the free space of a base in bytes; the base is made if it is not there. A base that can take no new
// directory is an error.
func room(base string) (uint64, error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return 0, err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(base, &s); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: base, Err: err}
	}
	switch {
	case s.Flags&unix.ST_RDONLY != 0:
		return 0, &os.PathError{Op: "make a volume in", Path: base, Err: unix.EROFS}
	case s.Bavail == 0, s.Files > 0 && s.Ffree == 0: // file systems without a table of inodes report none at all
		return 0, &os.PathError{Op: "make a volume in", Path: base, Err: unix.ENOSPC}
	}
	return s.Bavail * uint64(s.Bsize), nil
}

// makeDir makes a directory that everybody may write to, as pods run as any user; only root gets to it.
func (d *Disk) makeDir(base int, p volume.LocalPlace) (limit string, err error) {
	if err := unix.Mkdirat(base, p.Name, 0o777); err != nil && !errors.Is(err, unix.EEXIST) {
		return "", err
	}
	dir, err := unix.Openat2(base, p.Name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: inside})
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	if empty(dir) { // later, the mode is what the pods made of it
		if err := unix.Fchmod(dir, 0o777); err != nil { // the umask removed bits
			return "", err
		}
	}
	return d.limit(base, dir, p.Size)
}

func empty(dir int) bool {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var buf [4096]byte
	n, err := unix.ReadDirent(fd, buf[:])
	if err != nil {
		return false
	}
	_, _, names := unix.ParseDirent(buf[:n], -1, nil)
	return len(names) == 0
}

// makeFile creates a sparse file; an existing one keeps its content.
func makeFile(base int, p volume.LocalPlace) error {
	fd, err := openFile(base, p.Name, unix.O_CREAT)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return grow(fd, p.Size)
}

// openFile opens a regular file of a volume.
func openFile(base int, name string, flags uint64) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | flags,
		Resolve: inside}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	fd, err := unix.Openat2(base, name, how)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("not a regular file")
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// sector is what a block device's size is a multiple of; the rest of a file is cut off.
const sector = 512

// grow gives a file at least a size, in whole sectors.
func grow(fd int, size int64) error {
	if rest := size % sector; rest > 0 && size < math.MaxInt64-sector {
		size += sector - rest
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Size >= size {
		return nil // data is never cut off
	}
	return unix.Ftruncate(fd, size)
}

// Resize gives a volume more room.
func (d *Disk) Resize(ctx context.Context, p volume.LocalPlace) error {
	if err := d.check(p); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	base, err := open(p.Base)
	if err != nil {
		return err
	}
	defer unix.Close(base)
	if p.Block {
		err = resizeFile(base, p)
	} else {
		var dir int
		dir, err = unix.Openat2(base, p.Name, &unix.OpenHow{
			Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: inside})
		if err == nil {
			_, err = d.limit(base, dir, p.Size)
			unix.Close(dir)
		}
	}
	if err != nil {
		return &os.PathError{Op: "resize volume", Path: filepath.Join(p.Base, p.Name), Err: err}
	}
	return ctx.Err()
}

// resizeFile makes a file larger, and the loop devices that show it.
func resizeFile(base int, p volume.LocalPlace) error {
	fd, err := openFile(base, p.Name, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := grow(fd, p.Size); err != nil {
		return err
	}
	return nodevolume.LoopsResized(fd)
}

// Remove deletes the data of a volume. Mounts that pods left inside are detached, never entered. When ctx ends, it
// returns at the next file: millions may be left, and the next call goes on with them.
func (d *Disk) Remove(ctx context.Context, p volume.LocalPlace) error {
	if err := d.check(p); err != nil {
		return err
	}
	if p.Base == "" {
		return errors.New("remove a volume: no base directory is given")
	}
	base, err := open(p.Base)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(base)
	var project uint32
	if dir, err := unix.Openat2(base, p.Name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: inside}); err == nil {
		project = projectOf(dir)
		unix.Close(dir)
	}
	if fd, err := openFile(base, p.Name, 0); err == nil {
		err := nodevolume.LoopsDetached(fd)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	if err := nodevolume.RemoveTree(ctx, filepath.Join(p.Base, p.Name)); err != nil {
		return err
	}
	if isOurs(project) {
		forget(base, project)
	}
	return ctx.Err()
}

// Sweep deletes empty directories of unknown volumes: the directory is created before the
// volume, so a volume that was never created has no data. Data that an administrator has kept stays.
func (d *Disk) Sweep(ctx context.Context, known func(volume string) bool) error {
	var errs []error
	for _, b := range d.bases {
		base, err := open(b)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		entries, err := os.ReadDir(b)
		errs = append(errs, err)
		for _, e := range entries {
			name, _, ok := strings.Cut(e.Name(), "_")
			if !ok || !strings.HasPrefix(name, "pvc-") || known(name) {
				continue
			}
			if e.IsDir() {
				err = unix.Unlinkat(base, e.Name(), unix.AT_REMOVEDIR)
			} else {
				err = removeUnused(base, e.Name())
			}
			if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, &os.PathError{Op: "sweep", Path: filepath.Join(b, e.Name()), Err: err})
			}
		}
		unix.Close(base)
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// removeUnused deletes a file in which nothing was ever written.
func removeUnused(base int, name string) error {
	fd, err := openFile(base, name, 0)
	if err != nil {
		return nil //nolint:nilerr // not ours
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Blocks > 0 {
		return err
	}
	return unix.Unlinkat(base, name, 0)
}
