package routing

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var begin = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

// servers makes n endpoints that are ready.
func servers(n int) []Endpoint {
	out := make([]Endpoint, 0, n)
	for i := range n {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000)
		out = append(out, Endpoint{Address: a, Pod: types.UID(fmt.Sprint("u", i)), Ready: true,
			Name: types.NamespacedName{Namespace: "n", Name: fmt.Sprint("p", i)}})
	}
	return out
}

// config reads a configuration with plugins and weights by type, such as {"queue-scorer": 1}.
func config(t testing.TB, text string) *Config {
	t.Helper()
	c, err := ParseConfig([]byte(`{"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig", ` +
		text + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pool makes a pool of n endpoints.
func pool(c *Config, n int) *Pool {
	p := NewPool(c)
	p.SetEndpoints(servers(n))
	return p
}

// say gives endpoint i numbers.
func say(p *Pool, i int, now time.Time, s Stats) {
	ref := p.Refs()[i]
	p.Scraping(ref, now)
	s.At = now
	p.Observe(ref, s)
}

func chosen(t testing.TB, p *Pool, r *Request, now time.Time) string {
	t.Helper()
	d := p.Decide(r, now)
	if d.Verdict != Serve {
		t.Fatalf("the request is not served: %s %s", d.Verdict, d.Reason)
	}
	return p.Endpoint(d.Chosen[0]).Name.Name
}

// The server with the shortest queue and the emptiest cache gets the request (2.4).
func TestLeastLoaded(t *testing.T) {
	p := pool(DefaultConfig(), 3)
	say(p, 0, begin, Stats{Waiting: 4, CacheUse: 0.1})
	say(p, 1, begin, Stats{Waiting: 0, CacheUse: 0.2})
	say(p, 2, begin, Stats{Waiting: 2, CacheUse: 0.1})
	for seed := range uint64(20) {
		if got := chosen(t, p, &Request{Model: "m", Random: seed}, begin); got != "p1" {
			t.Fatalf("%s was chosen", got)
		}
	}
}
