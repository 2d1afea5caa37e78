package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// groupBits are what the group of a volume may do (S4.71).
const (
	groupBits    = 0o660
	groupDirBits = 0o2110
)

// When a change of the group is reported as slow, and how often how far it is (S4.72).
const (
	slowChange     = 30 * time.Second
	progressPeriod = time.Minute
)

// giveToGroup changes the group of all files of a pod's volume. Events tell how far it is if that takes long.
func (m *Manager) giveToGroup(ctx context.Context, pod *corev1.Pod, root string, group int64, onMismatch bool) error {
	var files atomic.Int64
	var reporter sync.WaitGroup
	defer reporter.Wait()
	if m.cfg.Event != nil {
		done := make(chan struct{})
		defer close(done)
		reporter.Go(func() {
			reportProgress(done, shownDir(root, pod.UID), &files, func(message string) {
				m.cfg.Event(pod, corev1.EventTypeWarning, "VolumePermissionChangeInProgress", message)
			})
		})
	}
	return giveToGroup(ctx, root, group, onMismatch, &files)
}

// shownDir is the name of a volume's directory in events: from the pod's UID on, if that is a part of it.
func shownDir(dir string, uid types.UID) string {
	if i := strings.Index(dir, string(uid)); i >= 0 {
		return dir[i:]
	}
	return dir
}

// reportProgress reports a slow change of the group of files until done is closed.
func reportProgress(done <-chan struct{}, dir string, files *atomic.Int64, report func(message string)) {
	timer := time.NewTimer(slowChange)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-done:
			return
		case <-timer.C:
			timer.Reset(progressPeriod)
		}
		if first {
			report("Setting volume ownership for " + dir + " is taking longer than expected, consider using " +
				"OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/" +
				"#configure-volume-permission-and-ownership-change-policy-for-pods")
		} else {
			report(fmt.Sprintf("Setting volume ownership for %s, processed %d files.", dir, files.Load()))
		}
	}
}

// giveToGroup changes the group of all files of a volume, the content of a directory before the directory itself, and
// counts them. Links are changed, never followed; other mounts are not entered. With onMismatch, a volume whose root
// has the group already is not changed.
func giveToGroup(ctx context.Context, root string, group int64, onMismatch bool, files *atomic.Int64) error {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	const wanted = groupBits | groupDirBits
	if onMismatch && int64(st.Gid) == group && st.Mode&wanted == wanted {
		return nil
	}
	if err := giveTree(ctx, fd, int(group), 0, files); err != nil {
		return fmt.Errorf("set the group of %s to %d: %w", root, group, err)
	}
	return give(fd, int(group))
}

// maxGiveDepth bounds the descriptors that giveTree holds; deeper files, which only an attack makes, keep their group.
const maxGiveDepth = 512

func giveTree(ctx context.Context, dir, group, depth int, files *atomic.Int64) error {
	var buf [16384]byte
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.ReadDirent(dir, buf[:])
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			files.Add(1)
			if err := giveEntry(ctx, dir, name, group, depth, files); err != nil && ctx.Err() != nil {
				return err
			}
			// A failure does not affect other files (S4.71): files may be removed meanwhile.
		}
	}
}

func giveEntry(ctx context.Context, dir int, name string, group, depth int, files *atomic.Int64) error {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && depth < maxGiveDepth {
		inner, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = giveTree(ctx, inner, group, depth+1, files)
		unix.Close(inner)
		if err != nil {
			return err
		}
	}
	return give(fd, group)
}

// give changes the group of the file of a descriptor.
func give(fd, group int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	change := int64(st.Gid) != int64(group)
	if change {
		if err := unix.Fchownat(fd, "", -1, group, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	var want uint32 = groupBits
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return nil
	case unix.S_IFDIR:
		want |= groupDirBits
	}
	mode := st.Mode & 0o7777
	if mode|want == mode && !change { // the change of the group has cleared the bits of set-user-ID
		return nil
	}
	// By its descriptor, which may be an O_PATH descriptor.
	err := unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), mode|want, 0)
	if errors.Is(err, unix.EROFS) {
		return nil
	}
	return err
}
