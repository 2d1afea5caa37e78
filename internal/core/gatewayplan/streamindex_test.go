package gatewayplan

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// searched does the same as StreamIndex.Find with a linear search.
func searched(streams []Stream, name string) int {
	best := -1
	for i := range streams {
		host := streams[i].Host
		suffix, wild := strings.CutPrefix(host, "*")
		switch {
		case host == name && host != "":
			return i
		case host == "" || wild && len(name) > len(suffix) && strings.HasSuffix(name, suffix):
			if best < 0 || len(host) > len(streams[best].Host) {
				best = i
			}
		}
	}
	return best
}

// The index finds the same streams as a linear search, for configured names and for arbitrary ones.
func TestStreamIndex(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	labels := []string{"a", "b", "c.d", "example", "com"}
	name := func() string {
		var parts []string
		for range rnd.IntN(4) {
			parts = append(parts, labels[rnd.IntN(len(labels))])
		}
		return strings.Join(parts, ".")
	}
	for range 2000 {
		var streams []Stream
		for range rnd.IntN(8) {
			host := name()
			if host != "" && rnd.IntN(2) == 0 {
				host = "*." + host
			}
			streams = append(streams, Stream{Host: host})
		}
		x := IndexStreams(streams)
		for range 20 {
			host := name()
			switch rnd.IntN(6) {
			case 0:
				host = "." + host
			case 1:
				host += "."
			case 2:
				host = "x" + host
			}
			if got, want := x.Find(host), searched(streams, host); got != want {
				t.Fatalf("%q among %v: %d, want %d", host, streams, got, want)
			}
		}
	}
}

func BenchmarkStreamIndex(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		var streams []Stream
		for i := range n {
			streams = append(streams, Stream{Host: fmt.Sprintf("*.s%d.example.com", i)},
				Stream{Host: fmt.Sprintf("s%d.com", i)})
		}
		x := IndexStreams(streams)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				x.Find("a.b.s7.example.com")
			}
		})
	}
}
