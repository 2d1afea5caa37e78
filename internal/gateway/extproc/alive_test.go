package extproc

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// A picker may decide late, also twice, as long as its server responds. This one has no health service.
func TestLatePicker(t *testing.T) {
	probed := make(chan struct{}, 1)
	var probes atomic.Int64
	client := (&hostile{send: func(send func(*extprocv3.ProcessingResponse) error) error {
		for probes.Load() < 3 {
			<-probed
		}
		for range 2 {
			if err := send(picked(&Choice{}, -1)); err != nil {
				return err
			}
		}
		return nil
	}}).start(t)
	client.probes.quiet, client.probes.limit = time.Millisecond, time.Hour
	client.probes.check = func(ctx context.Context) error {
		err := client.health(ctx)
		probes.Add(1)
		select {
		case probed <- struct{}{}:
		default:
		}
		return err
	}
	stream, got, err := client.Pick(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil), nil, nil)
	if err != nil || got.Answer != nil {
		t.Fatalf("%v %+v", err, got)
	}
	stream.Close()
}

// A picker whose connections are accepted, and never answered, fails.
func TestPickerThatNeverResponds(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
	}()
	client, err := New(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
	}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	client.probes.quiet, client.probes.limit = time.Millisecond, time.Millisecond
	_, _, err = client.Pick(t.Context(), httptest.NewRequest(http.MethodPost, "/", nil), []byte("prompt"), nil)
	if !errors.Is(err, errHangs) {
		t.Errorf("%v", err)
	}
}

// Many requests that wait share a call for the picker's health, and those that have got an answer are not ended by one
// that fails later.
func TestProbesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, fails := 0, false
		p := probes{quiet: quietTime, limit: probeTime, check: func(ctx context.Context) error {
			calls++
			if !fails {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		var hung atomic.Int64
		var stops []func() bool
		for range 100 {
			stops = append(stops, p.watch(t.Context(), func() { hung.Add(1) }))
		}
		time.Sleep(10*quietTime - time.Second)
		synctest.Wait()
		if calls > 9 || hung.Load() > 0 {
			t.Fatalf("%d calls for 100 requests, %d of them failed", calls, hung.Load())
		}
		for _, stop := range stops[1:] {
			if !stop() {
				t.Error("a request that has an answer hangs")
			}
		}
		fails = true
		time.Sleep(quietTime + probeTime + time.Second)
		synctest.Wait()
		if hung.Load() != 1 || stops[0]() {
			t.Errorf("%d requests failed, not the one that waits", hung.Load())
		}
	})
}
