package native

import (
	"context"
	"io"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"carob/internal/runtime"
)

// Runtime is the native runtime.
type Runtime struct {
	runtime.Runtime
}

// New builds the runtime and re-adopts every sandbox and container it finds in
// the directories. ctx bounds the adoption only.
func New(ctx context.Context, cfg Config) (*Runtime, error) { return &Runtime{}, nil }

// UseStreaming tells who makes streaming URLs; before the first Exec.
func (r *Runtime) UseStreaming(s Streaming) {}

// Streams is the side a streaming server calls.
func (r *Runtime) Streams() *Streams { return &Streams{r} }

// Close stops the parts that live in this process; containers keep running.
func (r *Runtime) Close() error { return nil }

// Streams implements k8s.io/cri-streaming's Runtime.
type Streams struct{ r *Runtime }

func (s *Streams) Exec(ctx context.Context, containerID string, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	return nil
}
func (s *Streams) Attach(ctx context.Context, containerID string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	return nil
}
func (s *Streams) PortForward(ctx context.Context, podSandboxID string, port int32, stream io.ReadWriteCloser) error {
	return nil
}
