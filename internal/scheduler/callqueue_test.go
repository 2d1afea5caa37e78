package scheduler

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestCallQueue: calls of one key run in order and one at a time, those of other keys meanwhile up to the limit, and a
// burst does not create a goroutine per call.
func TestCallQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, keys, each = 8, 1000, 3
		q := newCallQueue[int](limit)
		release := make(chan struct{})
		var mu sync.Mutex
		ran, running, most := map[int][]int{}, map[int]bool{}, 0
		before := runtime.NumGoroutine()
		for n := range each {
			for key := range keys {
				q.Do(key, func() {
					mu.Lock()
					if running[key] {
						t.Errorf("two calls of key %d at once", key)
					}
					running[key] = true
					most = max(most, len(running))
					mu.Unlock()
					<-release
					mu.Lock()
					delete(running, key)
					ran[key] = append(ran[key], n)
					mu.Unlock()
				})
			}
		}
		synctest.Wait()
		if made := runtime.NumGoroutine() - before; made > limit {
			t.Errorf("%d goroutines for %d calls", made, keys*each)
		}
		close(release)
		q.Wait()
		if most != limit {
			t.Errorf("at most %d calls at once, want %d", most, limit)
		}
		for key := range keys {
			if !slices.Equal(ran[key], []int{0, 1, 2}) {
				t.Fatal(fmt.Sprint("key ", key, " ran ", ran[key]))
			}
		}
		q.Do(1, func() { ran[1] = append(ran[1], 3) }) // after it was empty
		q.Wait()
		if len(ran[1]) != 4 {
			t.Errorf("key 1 ran %v", ran[1])
		}
	})
}
