package native

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The parts of a label as policies write them. A level is a sensitivity with categories, or a range
// of two: s0:c1,c5.c9-s1. None of them can hold what ends a part, a mount option or a string.
var (
	selinuxName  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,254}$`)
	selinuxLevel = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_]*)(:\w+([,.]\w+)*)?(-[A-Za-z][A-Za-z0-9_]*(:\w+([,.]\w+)*)?)?$`)
)

// maxSelinuxLevel is in bytes. The options of a mount have to fit into a page, with the paths of the image.
const maxSelinuxLevel = 512

// selinuxLabels are what CRI's options make: the label of the process and that of
// the files which are the container's own. Without options there are none.
func selinuxLabels(o *cri.SELinuxOption) (process, files string, err error) {
	for _, part := range []struct {
		name, value string
		is          *regexp.Regexp
	}{{"user", o.GetUser(), selinuxName}, {"role", o.GetRole(), selinuxName}, {"type", o.GetType(), selinuxName}, {"level", o.GetLevel(), selinuxLevel}} {
		if part.value != "" && (!part.is.MatchString(part.value) || len(part.value) > maxSelinuxLevel) {
			return "", "", fmt.Errorf("SELinux options: %q is no %s", part.value, part.name)
		}
	}
	if o == nil || o.Type == "" && o.Level == "" {
		return "", "", nil
	}
	or := func(s, d string) string {
		if s == "" {
			return d
		}
		return s
	}
	level := or(o.Level, "s0")
	return fmt.Sprintf("%s:%s:%s:%s", or(o.User, "system_u"), or(o.Role, "system_r"), or(o.Type, "container_t"), level),
		"system_u:object_r:container_file_t:" + level, nil
}

// context is the mount option that gives a label to all files of a mount.
func (pl *containerPlan) context() string { return `context="` + pl.fileLabel + `"` }

// labelled returns a mount whose files have the container's label. A bind mount
// shows files that have labels of their own.
func (pl *containerPlan) labelled(m mount.Mount) mount.Mount {
	if pl.fileLabel != "" && m.Type == "overlay" {
		m.Options = append(slices.Clip(m.Options), pl.context())
	}
	return m
}

// relabel gives the container's label to the files of the pod that it mounts, and
// to the volumes for which the agent wants that.
func (pl *containerPlan) relabel() error {
	if pl.fileLabel == "" {
		return nil
	}
	var paths []string
	for _, p := range pl.etc {
		paths = append(paths, p)
	}
	if pl.shm != "" && pl.shm != "/dev/shm" {
		paths = append(paths, pl.shm)
	}
	for _, m := range pl.config.Mounts {
		if m.SelinuxRelabel && m.HostPath != "" {
			paths = append(paths, m.HostPath)
		}
	}
	for _, m := range pl.rootfs {
		if m.Type == "bind" && !slices.Contains(m.Options, "ro") {
			paths = append(paths, m.Source)
		}
	}
	for _, p := range paths {
		if err := relabelTree(p, pl.fileLabel); err != nil {
			return fmt.Errorf("relabelling %s: %w", p, err)
		}
	}
	return nil
}

// systemDirs are the host's: with a container's label the host would not work any more.
var systemDirs = []string{"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var", "/var/lib", "/var/log"}

// relabelTree labels path and all below it on its file system. A container may
// change the tree meanwhile: nothing is followed out of it.
func relabelTree(path, label string) error {
	path = filepath.Clean(path)
	if slices.Contains(systemDirs, path) || strings.HasPrefix(path, "/usr/") || strings.HasPrefix(path, "/etc/") {
		return errors.New("a directory of the host is not relabelled")
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // of the files of the pod some are not made for each pod
	}
	if err != nil {
		return err
	}
	return relabelAt(fd, label)
}

// relabelAt labels what a descriptor names, and closes it.
func relabelAt(fd int, label string) error {
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	// The way by /proc names the object itself, whatever its path leads to by now.
	here := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := unix.Setxattr(here, "security.selinux", []byte(label), 0); err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EROFS) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	list, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(list), "")
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			below, err := unix.Openat2(fd, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV})
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
				continue // gone, or mounted there
			}
			if err != nil {
				return err
			}
			if err := relabelAt(below, label); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
