package stream

import (
	"context"
	"io"
	"net/url"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	criremote "k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"carob/internal/base/testwait"
)

// silent attaches to a container that writes nothing. It reports when an attach begins, and when it ends.
type silent struct {
	*world
	began, ended chan struct{}
}

func (s *silent) AttachContainer(
	ctx context.Context, _ string, _ io.Reader, _, _ io.WriteCloser, _ bool, _ <-chan criremote.TerminalSize,
) error {
	s.began <- struct{}{}
	<-ctx.Done()
	s.ended <- struct{}{}
	return ctx.Err()
}

// The attach of a client without input ends when the client leaves, though the container writes nothing.
func TestAttachEndsWithItsClient(t *testing.T) {
	for _, websocket := range []bool{false, true} {
		s := &silent{began: make(chan struct{}, 1), ended: make(chan struct{}, 1)}
		w := newWorldWith(t, func(c *Config) {
			s.world = c.Runtime.(*world)
			c.Runtime, c.Attacher = s, s
		})
		w.run("id1", "")
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		client := w.executor(t, "attach", websocket, url.Values{"output": {"1"}})
		go func() { left <- client.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard}) }()
		<-s.began
		leave()
		<-left
		select {
		case <-s.ended:
		case <-time.After(testwait.Limit):
			t.Fatalf("websocket %v: the attach has not ended", websocket)
		}
	}
}
