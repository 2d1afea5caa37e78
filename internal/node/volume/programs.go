package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/base/securepath"
)

// The arguments of mount(8) and mkfs(8) come from volumes, whose owners are administrators; nevertheless none of them
// may be parsed as an option.
var (
	fileSystemName = regexp.MustCompile(`^[a-z][a-z0-9._]{0,31}$`)
	mountOption    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@%+=-]{0,255}$`)
)

// mountOnce mounts a file system on a directory, by the machine's mount program, unless something is mounted there.
func mountOnce(ctx context.Context, dir, kind, source string, list []string) error {
	if securepath.IsMounted(dir) {
		return nil
	}
	args, err := mountArgs(dir, kind, source, list)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return run(ctx, "mount", args...)
}

func mountArgs(dir, kind, source string, list []string) ([]string, error) {
	if !fileSystemName.MatchString(kind) {
		return nil, fmt.Errorf("invalid file system type %q", kind)
	}
	if source == "" || strings.HasPrefix(source, "-") || strings.ContainsAny(source, "\x00\n") {
		return nil, fmt.Errorf("invalid mount source %q", source)
	}
	for _, o := range list {
		if !mountOption.MatchString(o) {
			return nil, fmt.Errorf("invalid mount option %q", o)
		}
	}
	args := []string{"-t", kind}
	if len(list) > 0 {
		args = append(args, "-o", strings.Join(list, ","))
	}
	return append(args, "--", source, dir), nil
}

// mountDisk mounts the file system of a device, unless something is mounted on the directory. A device without one is
// formatted; another one is checked first, and repaired where that loses nothing, as upstream does. Neither is done to
// a device that is to be mounted read-only.
func mountDisk(ctx context.Context, dir, kind, device string, list []string) error {
	if securepath.IsMounted(dir) {
		return nil
	}
	if !fileSystemName.MatchString(kind) {
		return fmt.Errorf("invalid file system type %q", kind)
	}
	formatted, err := isFormatted(ctx, device)
	if err != nil {
		return err
	}
	switch readOnly := slices.Contains(list, "ro"); {
	case formatted && !readOnly:
		err = check(ctx, device, checkEnds)
	case !formatted && readOnly:
		err = fmt.Errorf("cannot mount unformatted disk %s as we are manipulating it in read-only mode", device)
	case !formatted:
		args := []string{device}
		switch {
		case strings.HasPrefix(kind, "ext"):
			args = []string{"-F", "-m0", device}
		case kind == "xfs":
			args = []string{"-f", device}
		}
		err = run(ctx, "mkfs."+kind, args...)
	}
	if err != nil {
		return err
	}
	return mountOnce(ctx, dir, kind, device, list)
}

// isFormatted reports whether blkid finds anything on a device.
func isFormatted(ctx context.Context, device string) (bool, error) {
	err := run(ctx, "blkid", "-p", "-u", "filesystem,raid,crypto,other", "--", device)
	if err == nil {
		return true, nil
	}
	const nothing = 2 // exit status of blkid
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != nothing {
		return false, err
	}
	return false, nil
}

// Exit statuses of fsck(8). It combines them; as upstream, only these alone have a meaning.
const (
	fsckCorrected   = 1
	fsckUncorrected = 4
)

// checkEnds is how long fsck may take to stop between two repairs when its pod is deleted.
const checkEnds = 5 * time.Second

// check repairs the file system of a device that nothing uses. Only errors that it has found and cannot correct are an
// error: other problems of fsck say nothing about the file system.
func check(ctx context.Context, device string, ends time.Duration) error {
	if !filepath.IsAbs(device) { // fsck has no option that ends options
		return fmt.Errorf("invalid device %q: it is no absolute path", device)
	}
	log := klog.FromContext(ctx).WithValues("device", device)
	if inUse(device) { // mounted for another pod, which has checked it
		return nil
	}
	c, out := command(ctx, maxOutput, "fsck", "-a", device)
	defer endGroup(c, ends)()
	err := finish(ctx, c)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("fsck -a %s: %w", device, err)
	}
	e, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		log.Info("Mounting without a check: there is no program fsck")
	case exited && e.ExitCode() == fsckCorrected:
		log.Info("fsck corrected errors of the file system")
	case exited && e.ExitCode() == fsckUncorrected:
		return fmt.Errorf("'fsck' found errors on device %s but could not correct them: %s", device, out)
	default:
		log.Info("Mounting without a check: fsck failed", "err", err, "output", out.String())
	}
	return nil
}

// endGroup changes how a program is ended: its process group first gets a signal to end, and is killed later. The
// result cancels the kill.
func endGroup(c *exec.Cmd, after time.Duration) (stop func()) {
	var kill *time.Timer
	c.Cancel = func() error {
		group := -c.Process.Pid
		kill = time.AfterFunc(after, func() { _ = syscall.Kill(group, syscall.SIGKILL) })
		return syscall.Kill(group, syscall.SIGTERM)
	}
	c.WaitDelay = after + afterEnd
	return func() {
		if kill != nil { // Cancel has returned before Wait does
			kill.Stop()
		}
	}
}

// inUse reports whether a block device is mounted, or has another exclusive user.
func inUse(device string) bool {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.EBUSY)
}

// Limits of a program's output.
const (
	maxOutput = 512         // bytes that an error shows
	maxAnswer = 64 << 10    // bytes of an output that is read
	afterEnd  = time.Second // for output, after the program has ended
)

// run runs a program of the machine. It and all processes that it started in its group end with ctx: mount(8) has
// another program mount, which may wait for a server.
func run(ctx context.Context, name string, args ...string) error {
	out, err := output(ctx, maxOutput, name, args...)
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
}

// output is run, and returns the beginning of the output. Arguments do not appear in errors.
func output(ctx context.Context, most int, name string, args ...string) (string, error) {
	c, out := command(ctx, most, name, args...)
	err := finish(ctx, c)
	return out.String(), err
}

// command is a program in a group of its own, which ends with ctx, and the beginning of its output.
func command(ctx context.Context, most int, name string, args ...string) (*exec.Cmd, *beginning) {
	c := exec.CommandContext(ctx, name, args...)
	out := &beginning{left: most}
	c.Stdout, c.Stderr = out, out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = afterEnd
	return c, out
}

// finish runs a command until it ends.
func finish(ctx context.Context, c *exec.Cmd) error {
	err := c.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // it has ended well, and left a process that serves the mount
		err = nil
	case ctx.Err() != nil:
		err = fmt.Errorf("it has not ended: %w", ctx.Err())
	}
	return err
}

// beginning keeps the beginning of what is written to it.
type beginning struct {
	text bytes.Buffer
	left int
}

// Write implements io.Writer.
func (b *beginning) Write(p []byte) (int, error) {
	kept := p[:min(len(p), b.left)]
	b.left -= len(kept)
	_, _ = b.text.Write(kept) // it never fails
	return len(p), nil
}

// String is what was written, as text.
func (b *beginning) String() string {
	return strings.ToValidUTF8(strings.TrimSpace(b.text.String()), "?")
}
