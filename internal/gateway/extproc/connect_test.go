package extproc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// pipes is a listener in memory, which may be down.
type pipes struct {
	down   atomic.Bool
	accept chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	if p.down.Load() {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	select {
	case p.accept <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A picker that was away for long is called again soon after it is back. Who waits for it gets it then, and not before;
// the wait ends with the client's Close and with its context, too.
func TestPickerComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
		p.down.Store(true)
		server, over := grpc.NewServer(), make(chan error, 1)
		extprocv3.RegisterExternalProcessorServer(server, &hostile{
			send: func(send func(*extprocv3.ProcessingResponse) error) error { return send(picked(&Choice{}, -1)) }})
		go func() { over <- server.Serve(p) }()
		client, err := New(p.dial, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		pick := func() error {
			stream, _, err := client.Pick(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil), nil, nil)
			if err == nil {
				stream.Close()
			}
			return err
		}
		for range 100 {
			if err := pick(); !Lost(err) {
				t.Fatalf("%v", err)
			}
			time.Sleep(10 * time.Second)
		}
		ended, cancel := context.WithCancel(t.Context())
		results := make(chan error, 2)
		go func() { results <- client.Connected(t.Context()) }()
		go func() { results <- client.Connected(ended) }()
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		time.Sleep(10 * time.Minute)
		select {
		case err := <-results:
			t.Errorf("it is connected: %v", err)
		default:
		}
		p.down.Store(false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		select {
		case err := <-results:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("it is not connected")
		}
		if err := pick(); err != nil {
			t.Error(err)
		}
		other, err := New(func(context.Context) (net.Conn, error) { return nil, net.ErrClosed }, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		other.Begin()
		go func() { results <- other.Connected(t.Context()) }()
		synctest.Wait()
		other.Close()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		other.End()
		client.Close()
		server.Stop()
		<-over
	})
}
