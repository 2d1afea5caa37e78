package forward

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

type nothing struct{}

func (nothing) Add(float64) {}

// A connection on which nothing comes is closed after an hour, one on which something comes is not: the time begins
// anew.
func TestIdleStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &Record{BytesIn: nothing{}, BytesOut: nothing{}}
		client, front := net.Pipe()
		back, server := net.Pipe()
		began := time.Now()
		done := make(chan struct{})
		go func() { Relay(t.Context(), front, back, seen); close(done) }()
		b := make([]byte, 8)
		for range 3 {
			time.Sleep(Idle - time.Second)
			if _, err := client.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if n, err := server.Read(b); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if _, err := client.Read(b); err == nil {
			t.Error("something came back")
		}
		if took := time.Since(began); took != 3*(Idle-time.Second)+Idle {
			t.Errorf("closed after %v", took)
		}
		<-done
		if why := seen.why.Load(); why == nil || seen.in.Load() != 3 {
			t.Errorf("%v, %d bytes", why, seen.in.Load())
		}
	})
}
