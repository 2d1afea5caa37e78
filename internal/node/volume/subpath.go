package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"carob/internal/base/removetree"
	"carob/internal/node/spec"
)

// SubPath implements spec.Disk. The kernel resolves the path beneath the volume, and the inode is bind-mounted by its
// descriptor to a directory of the agent: if a container renames something later, the mount stays the one that was
// checked. Of what the agent has written, it is a hard link: that version may be removed before the container starts,
// and the kernel mounts no file that is removed.
func (m *Manager) SubPath(_ context.Context, req spec.SubPath) (string, error) {
	v, ok := m.Volumes(req.UID)[req.Volume]
	if !ok || v.HostPath == "" {
		return "", fmt.Errorf("cannot find volume %q to mount into container %q", req.Volume, req.Container)
	}
	written := v.HostPath == m.writtenDir(req.UID, req.Volume)
	if p := m.find(req.UID); written && p != nil {
		p.publishing.Lock() // the version that is found stays until it is linked
		defer p.publishing.Unlock()
	}
	fd, err := openBeneath(v.HostPath, req.Path)
	if err != nil {
		m.cfg.Logger.Error(err, "Resolving a subPath failed", "pod", req.UID, "volume", req.Volume, "subPath", req.Path)
		kind := "prepare subPath"
		if errors.Is(err, errCreate) {
			kind = "create subPath directory"
		}
		// L3.138
		return "", fmt.Errorf("failed to %s for volumeMount %q of container %q", kind, req.Volume, req.Container)
	}
	defer unix.Close(fd)
	place, fix := filepath.Join(m.podDir(req.UID), "volume-subpaths"), pin
	if written && inVersion(v.HostPath, req.Path) {
		place, fix = filepath.Join(m.writtenPod(req.UID), keptDir), keep
	}
	target := filepath.Join(place, req.Volume, req.Container, strconv.Itoa(req.Index))
	if err := fix(fd, target); err != nil {
		m.cfg.Logger.Error(err, "Pinning a subPath failed", "pod", req.UID, "volume", req.Volume, "subPath", req.Path)
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", req.Volume, req.Container)
	}
	return target, nil
}

// keptDir is beside the written volumes; it is no valid name of one.
const keptDir = ".subpaths"

var errCreate = errors.New("creating the directory")

// openBeneath opens path inside root without ever leaving root, and makes missing
// directories with the mode of root (L3.138).
func openBeneath(root, path string) (fd int, err error) {
	top, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(top)
	if fd, err = beneath(top, path); !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(top, &st); err != nil {
		return -1, err
	}
	at, err := unix.Dup(top)
	if err != nil {
		return -1, err
	}
	steps := strings.Split(filepath.Clean(path), "/")
	for i := range steps {
		next, err := stepInto(top, at, strings.Join(steps[:i+1], "/"), st.Mode&0o7777)
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

// stepInto opens path beneath top. Its last step is made in the directory at when it is missing.
func stepInto(top, at int, path string, mode uint32) (int, error) {
	fd, err := beneath(top, path)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	name := filepath.Base(path)
	if err := unix.Mkdirat(at, name, mode); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, fmt.Errorf("%w: %w", errCreate, &os.PathError{Op: "mkdir", Path: path, Err: err})
	}
	fd, err = unix.Openat2(at, name,
		&unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: inside})
	if err != nil {
		return -1, fmt.Errorf("%w: %w", errCreate, &os.PathError{Op: "open", Path: path, Err: err})
	}
	if err := unix.Fchmod(fd, mode); err != nil { // the umask took bits away
		unix.Close(fd)
		return -1, fmt.Errorf("%w: %w", errCreate, &os.PathError{Op: "chmod", Path: path, Err: err})
	}
	return fd, nil
}

func beneath(top int, path string) (int, error) {
	for range 8 {
		fd, err := unix.Openat2(top, path, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
		})
		if !errors.Is(err, unix.EAGAIN) {
			// a concurrent rename; the kernel can't tell whether it was an attack
			if err != nil {
				return -1, &os.PathError{Op: "open", Path: path, Err: err}
			}
			return fd, nil
		}
	}
	return -1, &os.PathError{Op: "open", Path: path, Err: unix.EAGAIN}
}

// pin mounts what fd refers to on target.
func pin(fd int, target string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if err := removetree.All(target); err != nil { // an earlier instance of the container; its own mount stays
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.Mkdir(target, 0o750); err != nil {
			return err
		}
	} else if err := os.WriteFile(target, nil, 0o640); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind mount", Path: target, Err: err}
	}
	return nil
}

// inVersion reports whether a path of a volume that the agent writes is in one of its versions, and not a directory
// that was made for a subPath.
func inVersion(root, path string) bool {
	head, _, _ := strings.Cut(filepath.Clean(path), "/")
	info, err := os.Lstat(filepath.Join(root, head))
	return err == nil && (info.Mode()&fs.ModeSymlink != 0 || strings.HasPrefix(head, ".."))
}

// keep makes target what fd refers to, with links to the same files.
func keep(fd int, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if err := removetree.All(target); err != nil { // of an earlier instance of the container, which has it mounted
		return err
	}
	source := fmt.Sprintf("/proc/self/fd/%d", fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return hardLink(source, target)
	}
	return filepath.WalkDir(source+"/.", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(target, strings.TrimPrefix(path, source))
		if !d.IsDir() {
			return hardLink(path, to)
		}
		if err := unix.Stat(path, &st); err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		return errors.Join(os.Mkdir(to, 0o700), os.Chown(to, int(st.Uid), int(st.Gid)),
			os.Chmod(to, fs.FileMode(st.Mode)&fs.ModePerm))
	})
}

// hardLink makes a link to the file that path, or the link of /proc at path, refers to.
func hardLink(path, to string) error {
	if err := unix.Linkat(unix.AT_FDCWD, path, unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &os.LinkError{Op: "link", Old: path, New: to, Err: err}
	}
	return nil
}
