package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// The arguments of mount(8) and mkfs(8) come from volumes, whose owners are administrators; nevertheless none of them
// may be parsed as an option.
var (
	fileSystemName = regexp.MustCompile(`^[a-z][a-z0-9._]{0,31}$`)
	mountOption    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@%+=-]{0,255}$`)
)

// mountOnce mounts a file system on a directory, by the machine's mount program, unless something is mounted there.
func mountOnce(ctx context.Context, dir, kind, source string, list []string) error {
	if isMounted(dir) {
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

// format creates a file system on a device that has none. If blkid finds anything on it, nothing
// is changed.
func format(ctx context.Context, device, kind string) error {
	if !fileSystemName.MatchString(kind) {
		return fmt.Errorf("invalid file system type %q", kind)
	}
	err := run(ctx, "blkid", "-p", "-u", "filesystem,raid,crypto,other", "--", device)
	if err == nil {
		return nil
	}
	const nothing = 2 // exit status of blkid
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != nothing {
		return err
	}
	args := []string{device}
	if strings.HasPrefix(kind, "ext") {
		args = []string{"-F", "-m0", device}
	}
	return run(ctx, "mkfs."+kind, args...)
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
	c := exec.CommandContext(ctx, name, args...)
	out := &beginning{left: most}
	c.Stdout, c.Stderr = out, out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = afterEnd
	err := c.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // it has ended well, and left a process that serves the mount
		err = nil
	case ctx.Err() != nil:
		err = fmt.Errorf("it has not ended: %w", ctx.Err())
	}
	return strings.ToValidUTF8(strings.TrimSpace(out.text.String()), "?"), err
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
