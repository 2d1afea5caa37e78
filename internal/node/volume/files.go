package volume

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

const (
	maxTerminationMessage = 4096    // bytes (L3.150)
	maxEnvFile            = 1 << 20 // bytes
	keptTerminationLogs   = 4       // of one container: the running instance, the previous, and two to spare
)

// HostsFile implements spec.Disk. The file is written in place: running containers have it mounted.
func (m *Manager) HostsFile(uid types.UID, content []byte) (string, error) {
	path := filepath.Join(m.podDir(uid), "etc-hosts")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return "", fmt.Errorf("writing the hosts file: %w", err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return "", fmt.Errorf("writing the hosts file: %w", err)
	}
	return path, nil
}

// TerminationLog implements spec.Disk. It needs no directory of its own: on many file systems
// that would cost more than the rest of Prepare. Files of earlier instances are kept only while
// they can still be requested.
func (m *Manager) TerminationLog(uid types.UID, container string) (string, error) {
	prefix := "termination." + container + "."
	if err := keepNewest(m.podDir(uid), prefix, keptTerminationLogs-1); err != nil {
		return "", fmt.Errorf("making the termination message file: %w", err)
	}
	var id [4]byte
	rand.Read(id[:]) // never fails
	path := filepath.Join(m.podDir(uid), prefix+hex.EncodeToString(id[:]))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return "", fmt.Errorf("making the termination message file: %w", err)
	}
	if err := errors.Join(f.Chmod(0o666), f.Close()); err != nil { // any user of the container writes it
		return "", fmt.Errorf("making the termination message file: %w", err)
	}
	return path, nil
}

// keepNewest removes the files of dir with that prefix but for the newest n.
func keepNewest(dir, prefix string, n int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var infos []fs.FileInfo
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if info, err := e.Info(); err == nil {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, info := range infos[min(n, len(infos)):] {
		if err := os.Remove(filepath.Join(dir, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// TerminationMessage reads the last 4096 bytes of a termination message file (L3.150). The path
// is the one that the runtime reports as mounted; it must have been created by TerminationLog.
func (m *Manager) TerminationMessage(path string) (string, error) {
	rel, err := filepath.Rel(m.podsDir(), path)
	if err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("termination message file %s is not below %s", path, m.podsDir())
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(0, size-maxTerminationMessage), maxTerminationMessage))
	return string(text), err
}

// ReadFile implements spec.Disk. Containers may have made the file: it is resolved inside the volume.
func (m *Manager) ReadFile(uid types.UID, volume, path string) ([]byte, error) {
	v, ok := m.Volumes(uid)[volume]
	if !ok || v.HostPath == "" {
		return nil, fmt.Errorf("volume %q is not set up", volume)
	}
	top, err := unix.Open(v.HostPath, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: v.HostPath, Err: err}
	}
	defer unix.Close(top)
	fd, err := unix.Openat2(top, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	} else if info.Size() > maxEnvFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxEnvFile)
	}
	return io.ReadAll(io.LimitReader(f, maxEnvFile))
}
