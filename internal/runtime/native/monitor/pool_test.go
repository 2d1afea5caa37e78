package monitor

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A pool leaves the CPU to the pod that took a monitor, but not if it has few others.
func TestPoolPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := 0
		p := NewPool(4, func() (*Monitor, error) {
			started++
			return &Monitor{conn: &net.UnixConn{}, broken: make(chan struct{})}, nil
		}, func(*Monitor) {})
		defer p.Close()
		expect := func(what string, want int) {
			t.Helper()
			if synctest.Wait(); started != want {
				t.Errorf("%s: %d monitors were started, want %d", what, started, want)
			}
		}
		take := func() {
			t.Helper()
			if _, err := p.Get(); err != nil {
				t.Fatal(err)
			}
		}
		expect("a new pool", 4)
		take()
		time.Sleep(refillPause - 1)
		expect("just after one was taken", 4)
		take()
		time.Sleep(time.Nanosecond)
		expect("after the pause, which a second one does not prolong", 6)
		for range 3 {
			take()
		}
		expect("less than half are left", 9)
		close((<-p.ready).broken) // killed while it waited
		take()
		time.Sleep(refillPause)
		expect("one of them had died", 11)
	})
}
