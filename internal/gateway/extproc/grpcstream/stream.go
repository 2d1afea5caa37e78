package grpcstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Why streams are ended.
var (
	errLife    = status.Error(codes.DeadlineExceeded, "the request takes too long")
	errTimeout = status.Error(codes.DeadlineExceeded, "the client's deadline has passed")
	errLate    = status.Error(codes.DeadlineExceeded, "the client stopped within a request")
	errMemory  = status.Error(codes.ResourceExhausted, "too many messages are incomplete at once")
)

// firstBytes is the memory that a message gets before anything of it has arrived; it grows with what has.
const firstBytes = 16 << 10

// headBytes is the length of what comes before a message: whether it is compressed, and its length.
const headBytes = 5

// Stream is one stream. One goroutine uses it.
type Stream struct {
	ctx     context.Context //nolint:containedctx // of the stream, as in google.golang.org/grpc
	server  *Server
	request *http.Request
	writer  http.ResponseWriter
	control *http.ResponseController
	share   share
	begun   bool // headers were sent

	mu      sync.Mutex
	why     error // nil: the stream goes on
	sending bool
	over    bool
}

// Context ends with the stream: when the client or the server has ended it, or its time is over.
func (s *Stream) Context() context.Context { return s.ctx }

// Authority is the server that the client calls.
func (s *Stream) Authority() string { return s.request.Host }

// Metadata are the values of a key that the client has sent, separated by commas.
func (s *Stream) Metadata(key string) string { return strings.Join(s.request.Header.Values(key), ",") }

// Recv waits for a message, for at most limit; 0: as long as the stream lives. Errors are a status, or io.EOF when the
// client has sent its last message. The memory of the message counts until Free or the next Recv.
func (s *Stream) Recv(m proto.Message, limit time.Duration) error {
	s.Free()
	if s.share.of == nil {
		s.share = share{of: &s.server.budget, evict: func() { s.stop(errMemory) }}
	}
	if limit > 0 {
		defer time.AfterFunc(limit, func() { s.stop(errLate) }).Stop()
	}
	var head [headBytes]byte
	if _, err := io.ReadFull(s.request.Body, head[:]); err != nil {
		if errors.Is(err, io.EOF) && s.reason(nil) == nil {
			return io.EOF
		}
		return s.reason(err)
	}
	if head[0] != 0 {
		return status.Error(codes.Unimplemented, "messages must not be compressed")
	}
	length := binary.BigEndian.Uint32(head[1:])
	if uint64(length) > uint64(s.server.Limits.Message) {
		return status.Errorf(codes.ResourceExhausted, "a message has %d bytes; at most %d are allowed", length,
			s.server.Limits.Message)
	}
	defer time.AfterFunc(s.server.Limits.MessageTime, func() { s.stop(errLate) }).Stop()
	data, err := s.read(int(length))
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(data, m); err != nil {
		return status.Error(codes.Internal, fmt.Sprintf("read a message: %v", err))
	}
	return nil
}

// read reads a message. Its memory grows with what has arrived: a client may announce what it never sends.
func (s *Stream) read(length int) ([]byte, error) {
	var data []byte
	for len(data) < length {
		if len(data) == cap(data) {
			size := min(length, max(firstBytes, 2*cap(data)))
			if !s.share.take(int64(size - cap(data))) {
				return nil, errMemory
			}
			data = append(make([]byte, 0, size), data...)
		}
		n, err := s.request.Body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		s.share.moved()
		if err != nil && len(data) < length {
			return nil, s.reason(err)
		}
	}
	return data, nil
}

// Free releases the message of the last Recv.
func (s *Stream) Free() {
	if s.share.of != nil {
		s.share.free()
	}
}

// Send sends a message. The client must take it within the time of a message.
func (s *Stream) Send(m proto.Message) error {
	data, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, headBytes, headBytes+proto.Size(m)), m)
	if err != nil {
		return status.Error(codes.Internal, fmt.Sprintf("write a message: %v", err))
	}
	binary.BigEndian.PutUint32(data[1:], uint32(len(data)-headBytes)) //nolint:gosec // messages are far below 4 GiB
	if !s.send(true) {
		return s.reason(nil)
	}
	defer s.send(false)
	defer time.AfterFunc(s.server.Limits.MessageTime, func() { s.stop(errLate) }).Stop()
	s.begin()
	if _, err := s.writer.Write(data); err != nil {
		return s.reason(err)
	}
	if err := s.control.Flush(); err != nil {
		return s.reason(err)
	}
	return nil
}

// send notes whether a message is being sent. false: the stream has ended.
func (s *Stream) send(now bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending = now
	return s.why == nil
}

// begin sends the headers.
func (s *Stream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	h := s.writer.Header()
	h["Content-Type"] = []string{"application/grpc"}
	h["Trailer"] = []string{"Grpc-Status", "Grpc-Message"}
	s.writer.WriteHeader(http.StatusOK)
	_ = s.control.Flush() // without it the server would add a length; the next write fails, too
}

// stop ends the stream from outside, once: what waits for the client returns.
func (s *Stream) stop(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil || s.over {
		return
	}
	if s.why = why; s.why == nil {
		s.why = context.Canceled
	}
	_ = s.request.Body.Close()
	if s.sending {
		_ = s.control.SetWriteDeadline(time.Unix(1, 0)) // resets the stream
	}
}

// reason is the status for an error: why the stream was ended, or that the client has broken it off.
func (s *Stream) reason(err error) error {
	s.mu.Lock()
	why := s.why
	s.mu.Unlock()
	switch {
	case why != nil && (errors.Is(why, context.Canceled) || errors.Is(why, context.DeadlineExceeded)):
		return status.FromContextError(why).Err()
	case why != nil:
		return why
	case err == nil:
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return status.Error(codes.Internal, "the client ended the stream within a message")
	}
	return status.Error(codes.Canceled, "the client canceled the stream")
}

// finish sends the status. The stream is not used afterwards.
func (s *Stream) finish(err error) {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.Free()
	s.begin()
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err) // Unknown for others
	}
	h := s.writer.Header()
	h.Set("Grpc-Status", strconv.Itoa(int(st.Code())))
	if text := st.Message(); text != "" {
		h.Set("Grpc-Message", percent(text))
	}
}

// percent encodes a message for a header: printable ASCII stays.
func percent(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
