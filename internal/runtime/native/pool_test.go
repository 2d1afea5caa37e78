package native

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A pool leaves the processors to the pod that took a monitor, but not when it has few others.
func TestMonitorPoolPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := 0
		p := newMonitorPool(4, func() (*monitor, error) {
			started++
			return &monitor{conn: &net.UnixConn{}, gone: make(chan struct{})}, nil
		})
		defer p.close()
		expect := func(what string, want int) {
			t.Helper()
			if synctest.Wait(); started != want {
				t.Errorf("%s: %d monitors were started, want %d", what, started, want)
			}
		}
		take := func() {
			t.Helper()
			if _, err := p.get(); err != nil {
				t.Fatal(err)
			}
		}
		expect("a new pool", 4)
		take()
		time.Sleep(refillPause - 1)
		expect("just after one was taken", 4)
		take()
		time.Sleep(1)
		expect("after the pause, which a second one does not prolong", 6)
		for range 3 {
			take()
		}
		expect("less than half are left", 9)
		close((<-p.ready).gone) // killed while it waited
		take()
		time.Sleep(refillPause)
		expect("one of them had died", 11)
	})
}
