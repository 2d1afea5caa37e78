package immutablemap

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// After random changes, a map has the same entries as a Go map, and each earlier version still has its entries. The
// second hash puts all keys into one shard.
func TestAgainstMap(t *testing.T) {
	for name, hash := range map[string]func(string) uint32{"spread": String, "one": func(string) uint32 { return 7 }} {
		r := rand.New(rand.NewPCG(1, 2))
		type version struct {
			m    Map[string, int]
			want map[string]int
		}
		now := version{New[string, int](hash), map[string]int{}}
		for range 50 {
			k := fmt.Sprint(r.IntN(3000))
			now.m.Set(k, 1)
			now.want[k] = 1
		}
		var before []version
		for i := range 6000 {
			k := fmt.Sprint(r.IntN(3000))
			if i%500 == 0 {
				before = append(before, version{now.m, maps.Clone(now.want)})
			}
			if r.IntN(10) < []int{7, 2}[i/3000] { // it grows, then it shrinks
				now.m = now.m.With(k, i)
				now.want[k] = i
			} else {
				now.m = now.m.Without(k)
				delete(now.want, k)
			}
		}
		for i, v := range append(before, now) {
			if got := maps.Collect(v.m.All()); !maps.Equal(got, v.want) || v.m.Len() != len(v.want) {
				t.Fatalf("%s: version %d has %d entries, want %d", name, i, v.m.Len(), len(v.want))
			}
			for k, want := range v.want {
				if got, ok := v.m.Get(k); !ok || got != want {
					t.Fatalf("%s: version %d: %s is %d, want %d", name, i, k, got, want)
				}
			}
			if _, ok := v.m.Get("none"); ok {
				t.Fatal("a key that was never set")
			}
		}
	}
}

func BenchmarkWith(b *testing.B) {
	for _, n := range []int{10, 10000, 100000} {
		m := New[string, int](String)
		for i := range n {
			m.Set(fmt.Sprint(i), i)
		}
		b.Run(fmt.Sprint("with/", n), func(b *testing.B) {
			for b.Loop() {
				m = m.With("5", 1)
			}
		})
		b.Run(fmt.Sprint("get/", n), func(b *testing.B) {
			for b.Loop() {
				m.Get("5")
			}
		})
	}
}
