package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// Limits of one call of a plugin.
const (
	runTimeout  = 2 * time.Minute // as the kubelet's calls of a runtime
	afterEnd    = time.Second     // for output, after the program has ended
	maxResult   = 1 << 20         // bytes of its result
	maxMessage  = 4 << 10         // bytes of its messages; the rest is dropped
	busyRetries = 5               // while a program is being written, one second each
)

// programs runs the programs of plugins. libcni's own reads output without limit, and waits for every process that
// holds it, also after the plugin was killed.
type programs struct {
	version.PluginDecoder

	timeout time.Duration
}

var _ invoke.Exec = (*programs)(nil)

// FindInPath implements invoke.Exec.
func (*programs) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths) //nolint:wrapcheck // libcni does
}

// ExecPlugin implements invoke.Exec: it calls a plugin once (N7.4). Its errors are those of the plugin.
func (p *programs) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	for try := 0; ; try++ {
		out, err := run(ctx, path, stdin, environ)
		if !errors.Is(err, syscall.ETXTBSY) || try == busyRetries {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Second):
		}
	}
}

// run runs a program. It and all processes that it started in its group end with ctx.
func run(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = environ
	out, message := &limited{left: maxResult}, &limited{left: maxMessage}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), out, message
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = afterEnd
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrWaitDelay): // it has ended well, and left a process behind
		err = nil
	case errors.Is(err, syscall.ETXTBSY):
		return nil, fmt.Errorf("run CNI plugin %s: %w", path, err)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("CNI plugin %s has not ended: %w", path, ctx.Err())
	case err != nil:
		return nil, failure(err, out.b.Bytes(), message.String())
	case out.cut:
		return nil, fmt.Errorf("the result of CNI plugin %s has more than %d bytes", path, maxResult)
	}
	_, _ = io.WriteString(os.Stderr, message.String()) // as libcni does: carob's log
	return out.b.Bytes(), nil
}

// failure is the error that a plugin reports, or what is known about it.
func failure(err error, out []byte, message string) error {
	reported := &types.Error{}
	if json.Unmarshal(out, reported) == nil && (reported.Msg != "" || reported.Code != 0) {
		return reported
	}
	if message == "" {
		message = strings.ToValidUTF8(string(out[:min(len(out), maxMessage)]), "?")
	}
	if message == "" {
		return &types.Error{Msg: fmt.Sprintf("the plugin failed without a message: %v", err)}
	}
	return &types.Error{Msg: fmt.Sprintf("the plugin failed: %q: %v", message, err)}
}

// limited keeps the beginning of what is written to it, and drops the rest.
type limited struct {
	b    bytes.Buffer
	left int
	cut  bool
}

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.left -= n
	l.cut = l.cut || n < len(b)
	l.b.Write(b[:n])
	return len(b), nil
}

// String returns what was kept, as text.
func (l *limited) String() string { return strings.ToValidUTF8(l.b.String(), "?") }
