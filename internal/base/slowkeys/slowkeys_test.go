package slowkeys

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Whatever runs for however long, in whatever order it ends: each key is started once, as many run as may, a namespace
// with as many slow keys as it may have starts no other one, and at the end nothing is left.
func TestRandomRuns(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		workers, now := 2+random.IntN(6), time.Unix(0, 0)
		l := New[int](workers)
		const keys = 400
		namespace := func(key int) string { return fmt.Sprint(key % (1 + int(seed%5))) }
		ready, running, started := []int(nil), map[int]time.Time{}, map[int]bool{}
		for key := range keys {
			ready = append(ready, key)
		}
		slow := func(of string) (n int) {
			for key, began := range running {
				if now.Sub(began) >= After && (of == "" || namespace(key) == of) {
					n++
				}
			}
			return n
		}
		for step := 0; len(started) < keys || len(running) > 0; step++ {
			if step > 100*keys {
				t.Fatalf("seed %d: it does not end: %d started, %+v", seed, len(started), l)
			}
			for len(ready) > 0 {
				ok, next := l.Free(now)
				if !ok {
					if n := len(running) - slow(""); n < workers && slow("") < InAll {
						t.Fatalf("seed %d: %d run that are not slow, and no other one may", seed, n)
					}
					if !next.IsZero() && !next.After(now) {
						t.Fatalf("seed %d: the next key is slow at %v, and it is %v", seed, next, now)
					}
					break
				}
				key := ready[0]
				ready = ready[1:]
				if !l.Start(key, namespace(key), now) {
					if slow(namespace(key)) < InNamespace {
						t.Fatalf("seed %d: key %d waits for nothing", seed, key)
					}
					continue
				}
				if started[key] {
					t.Fatalf("seed %d: key %d is started twice", seed, key)
				}
				running[key], started[key] = now, true
				if n := len(running); n > workers+InAll {
					t.Fatalf("seed %d: %d run", seed, n)
				}
			}
			now = now.Add(time.Duration(random.IntN(400)) * time.Millisecond)
			for _, key := range slices.Sorted(maps.Keys(running)) {
				if random.IntN(4+int(seed%20)) > 0 {
					continue
				}
				at, waited := l.End(key)
				if !at.Equal(running[key]) {
					t.Fatalf("seed %d: key %d began at %v, not %v", seed, key, at, running[key])
				}
				delete(running, key)
				ready = append(ready, waited...)
			}
		}
		if !l.Empty() {
			t.Fatalf("seed %d: left over: %+v", seed, l)
		}
	}
}
