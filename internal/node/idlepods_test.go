package node

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// What a running pod keeps in the agent while nothing happens: its owner's goroutine and state. The
// objects of the fakes are included, what they record is not.
func TestCostOfIdlePods(t *testing.T) {
	const n, mostBytes = 200, 48 << 10 // measured: 30 to 34 KB alone, up to 42 KB after other tests
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		defer w.stop()
		use := func() (bytes, goroutines int) {
			settle(time.Minute)
			w.mu.Lock()
			w.events, w.entries = nil, nil
			w.mu.Unlock()
			for range 4 {
				runtime.GC() // each halves stacks that are hardly used
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
		}
		w.api.put(webPod("first"))
		bytes, goroutines := use()
		for i := range n {
			w.api.put(webPod(fmt.Sprint("idle-", i)))
		}
		moreBytes, moreGoroutines := use()
		for i := range n {
			w.mustBe(fmt.Sprint("idle-", i), "Running")
		}
		if got := moreGoroutines - goroutines; got > n {
			t.Errorf("%d goroutines for %d pods", got, n)
		}
		got := (moreBytes - bytes) / n
		t.Logf("%d bytes and %.2f goroutines each", got, float64(moreGoroutines-goroutines)/n)
		if got > mostBytes {
			t.Errorf("%d bytes each, want at most %d", got, mostBytes)
		}
	})
}
