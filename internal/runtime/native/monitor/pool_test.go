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
		started, prepared := 0, 0
		p := NewPool(4, func() (*Monitor, error) {
			started++
			return &Monitor{conn: &net.UnixConn{}, broken: make(chan struct{})}, nil
		}, func(*Monitor) { prepared++ })
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
		for range 4 {
			take()
		}
		if started, prepared = 0, 0; p.Len() != 0 {
			t.Errorf("%d are left", p.Len())
		}
		take() // in a burst
		if started != 1 || prepared != 0 {
			t.Errorf("a pod waited for %d monitors and %d helpers that were started ahead, want 1 and 0", started,
				prepared)
		}
		time.Sleep(refillPause)
		if synctest.Wait(); started != 5 || prepared != 4 {
			t.Errorf("after a burst %d monitors were started and %d prepared, want 5 and 4", started, prepared)
		}
	})
}
