package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"carob/internal/base/streamguard"
	"carob/internal/node/logs"
	"carob/internal/runtime"
)

// `kubectl run -i` (1.37) reads the whole log of a container, then attaches to it. A short container may end between
// the two. When the attach fails, kubectl reads the log again from the second of its first look on, and shows most of
// it twice. So the server records up to which position it has sent a log, and a client that attaches to a container
// that has ended meanwhile gets the rest of the log as its stream.

// Limits of the records of sent logs.
const (
	shownFor   = 30 * time.Second // between the log and the attach of one kubectl
	shownCount = 1024             // containers at most; the oldest is removed
)

// shownLogs are the logs that clients have read recently.
type shownLogs struct {
	mu   sync.Mutex
	logs map[string]shownLog // by container id
}

// shownLog is the position up to which a log was sent.
type shownLog struct {
	path string
	end  logs.Mark
	at   time.Time
}

// add records that the log of a container was sent up to end.
func (s *shownLogs) add(id, path string, end logs.Mark) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logs == nil {
		s.logs = map[string]shownLog{}
	}
	oldest, at := "", now
	for id, l := range s.logs {
		switch {
		case now.Sub(l.at) > shownFor:
			delete(s.logs, id)
		case l.at.Before(at):
			oldest, at = id, l.at
		}
	}
	if len(s.logs) >= shownCount {
		delete(s.logs, oldest)
	}
	s.logs[id] = shownLog{path: path, end: end, at: now}
}

// get returns the position up to which the log of a container was sent.
func (s *shownLogs) get(id string) (shownLog, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.logs[id]
	return l, ok && time.Since(l.at) <= shownFor
}

// has reports whether get would return a position.
func (s *shownLogs) has(id string) bool {
	_, ok := s.get(id)
	return ok
}

func (s *shownLogs) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.logs, id)
}

// attach connects to the streams of a running container. If it has ended since its log was
// shown, attach sends the rest of the log.
func (s *Server) attach(w http.ResponseWriter, req *http.Request) {
	pod := s.find(w, req)
	if pod == nil {
		return
	}
	name := req.PathValue("container")
	id, running := s.cfg.Pods.ContainerID(pod.UID, name), true
	if id == "" {
		running = false
		id, _, _ = logSource(pod, name, false) // without an instance no log was sent
	}
	o, err := parseStreams(req.URL.Query())
	if err = upgraded(req, err); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case !running && !s.shown.has(id):
		http.Error(w, fmt.Sprintf("container not found (%q)", name), http.StatusInternalServerError)
	case !running:
		s.serveAttach(w, req, id, o, s.attachEnded)
	case s.attaches(id):
		s.serveAttach(w, req, id, o, s.attachLive(pod.UID))
	default:
		res, err := s.cfg.Runtime.Attach(req.Context(), &cri.AttachRequest{
			ContainerId: id, Tty: o.tty, Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr,
		})
		if err != nil && s.shown.has(id) && s.ends(req.Context(), pod.UID, id) {
			s.serveAttach(w, req, id, o, s.attachEnded)
			return
		}
		s.shown.forget(id) // the client gets the rest from the runtime
		s.passOn(w, req, res.GetUrl(), err)
	}
}

// attaches reports whether the runtime attaches to the container without a streaming server.
func (s *Server) attaches(id string) bool {
	if some, ok := s.cfg.Attacher.(runtime.SomeAttacher); ok {
		return some.Attaches(id)
	}
	return s.cfg.Attacher != nil
}

// leavePeriod is how long an attach continues whose client has left, for its input, and how often a connection is
// checked whose input nobody reads.
const leavePeriod = 10 * time.Second

// streamTimeout is how long a stream may be idle (cri-streaming's default).
const streamTimeout = 4 * time.Hour

// attaching connects the streams of a client to a container.
type attaching func(
	ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize,
) error

// AttachContainer implements remotecommand.Attacher.
func (a attaching) AttachContainer(
	ctx context.Context, _, _, id string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	return a(ctx, id, in, out, errw, tty, resize)
}

func (s *Server) serveAttach(w http.ResponseWriter, req *http.Request, id string, o streamOptions, attach attaching) {
	streams := streamguard.Streams{Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr, TTY: o.tty}
	guard := streamguard.New(w, streams.Most)
	defer guard.Close()
	ctx, cancel := guard.Context(req.Context(), o.stdin, leavePeriod)
	defer cancel()
	served := attaching(func(ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, tty bool,
		resize <-chan remotecommand.TerminalSize) error {
		err := attach(ctx, id, in, out, errw, tty, resize)
		if ctx.Err() != nil && req.Context().Err() == nil {
			return nil // the client has left
		}
		return err
	})
	remotecommand.ServeAttach(guard, req.WithContext(ctx), served, "", "", id,
		&remotecommand.Options{Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr, TTY: o.tty},
		streamTimeout, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

// attachLive attaches to a container that ran a moment ago.
func (s *Server) attachLive(uid types.UID) attaching {
	return func(
		ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, tty bool,
		resize <-chan remotecommand.TerminalSize,
	) error {
		err := s.cfg.Attacher.AttachContainer(ctx, id, in, out, errw, tty, resize)
		switch {
		case err == nil:
			s.shown.forget(id) // the client had the rest from the runtime
		case s.shown.has(id) && s.ends(ctx, uid, id):
			return s.attachEnded(ctx, id, in, out, errw, tty, resize)
		}
		return err
	}
}

// attachEnded sends the part of the log that was written since it was last sent.
func (s *Server) attachEnded(
	ctx context.Context, id string, _ io.Reader, out, errw io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize,
) error {
	log, ok := s.shown.get(id)
	if !ok {
		return fmt.Errorf("container %s has ended", id)
	}
	var stdout, stderr io.Writer // nil if the client did not request the stream
	if out != nil {
		stdout = out
	}
	if errw != nil {
		stderr = errw
	}
	end, err := logs.ReadFrom(ctx, log.path, log.end, stdout, stderr)
	if err == nil {
		s.shown.add(id, log.path, end)
	}
	return err
}

// endTimeout is how long the server waits for the end of a container when an attach fails.
const endTimeout = 500 * time.Millisecond

// ends reports whether a container has ended after an attach failed. The process that holds its streams notices the end
// a moment before the runtime reports it and the pod changes.
func (s *Server) ends(ctx context.Context, uid types.UID, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for {
		changed := s.cfg.Pods.Changed(uid)
		st, err := s.cfg.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		switch {
		case err != nil:
			return status.Code(err) == codes.NotFound // removed
		case st.GetStatus().GetState() == cri.ContainerState_CONTAINER_EXITED:
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Limits of notifying the runtime that a log is being sent.
const (
	shownTimeout = time.Second // the log waits for it
	shownTries   = 8           // while the container continues to write
)

// logShown notifies the runtime that a client reads the whole log of a container: a runtime that holds output for
// clients that attach late must not send the same output again. Output up to this moment is sent from the log, later
// output is held: the result is the position between the two. It is nil if the position is unknown: the runtime does
// not hold output, fails, or does not respond (this costs the client only shownTimeout), or the container writes
// without a pause; then some output is sent twice, and none is lost. Requests for a part of a log do not notify the
// runtime.
func (s *Server) logShown(ctx context.Context, id, path string, q logQuery) *logs.Mark {
	holder, ok := s.cfg.Runtime.(runtime.OutputHolder)
	if !ok || !q.whole() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, shownTimeout)
	defer cancel()
	before, err := logs.End(path)
	tries := shownTries
	if q.Follow {
		tries = 1 // it sends all later output, too
	}
	for range tries {
		if shownErr := holder.LogShown(ctx, id); errors.Is(shownErr, errors.ErrUnsupported) {
			return nil
		} else if shownErr != nil {
			s.cfg.Logger.V(2).Info("Output that a log shows may be shown again to a client that attaches", "container",
				id, "err", shownErr)
			return nil
		}
		after, now := logs.End(path)
		switch {
		case err != nil || now != nil:
			return nil // the read reports the reason
		case after.Same(before):
			return &after
		}
		before = after
	}
	return nil
}
