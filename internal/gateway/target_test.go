package gateway

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/gatewayplan/endpoints"
	"carob/internal/core/httproute"
)

// Whatever endpoints come and go, in pools that share some: each pool has the ones that it was given, those that stay
// keep their connections, and nothing is kept of those that are in no pool.
func TestEndpointsComeAndGo(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tr := newTraffic()
	pools := []*pool{newPool(), newPool()}
	pools[1].infers = true
	for range 2000 {
		p := pools[r.IntN(2)]
		var all []endpoints.Endpoint
		for i := range 1 + r.IntN(12) {
			if r.IntN(2) == 0 {
				continue
			}
			e := endpoints.Endpoint{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80),
				Pod: []types.UID{"a", "b"}[r.IntN(2)], Ending: r.IntN(4) == 0}
			all = append(all, e)
		}
		before := maps.Clone(tr.targets)
		tr.set(p, all)
		now := *p.endpoints.Load()
		if len(now) != len(all) {
			t.Fatalf("%d endpoints, want %d", len(now), len(all))
		}
		for i, target := range now {
			if was := before[all[i]]; target.Endpoint != all[i] || was != nil && was != target || target.gone.Load() {
				t.Fatalf("%+v, want %+v; before %p, now %p", target.Endpoint, all[i], was, target)
			}
		}
		in := map[*Target]int{}
		for _, p := range pools {
			for _, target := range *p.endpoints.Load() {
				in[target]++
			}
		}
		for of, target := range before {
			if in[target] == 0 != target.gone.Load() {
				t.Fatalf("%+v of %d pools: gone %t", of, in[target], target.gone.Load())
			}
		}
		for target, n := range in {
			if target.pools != n || tr.targets[target.Endpoint] != target || !tr.pods[target.Pod][target] {
				t.Fatalf("%+v: %d pools, want %d", target.Endpoint, target.pools, n)
			}
		}
		if len(tr.targets) != len(in) {
			t.Fatalf("%d targets, want %d", len(tr.targets), len(in))
		}
	}
}

// Certificates that are renewed for as long as an endpoint exists leave nothing behind, a mode that is in use stays,
// and a request in flight is finished with the transport that it has.
func TestRenewedModes(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			_, _ = io.WriteString(w, "first ")
			_ = http.NewResponseController(w).Flush()
			close(begun)
			<-release
			_, _ = io.WriteString(w, "last")
		}
	}))
	defer backend.Close()
	addr := strings.TrimPrefix(backend.URL, "http://")
	target := &Target{Endpoint: endpoints.Endpoint{Address: netip.MustParseAddrPort(addr)}, host: addr,
		traffic: newTraffic()}
	get := func(m mode, path string) *http.Response {
		t.Helper()
		tr, err := target.transport(m)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, backend.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	used := mode{}
	slow := get(mode{upgrade: true}, "/slow") // a mode that is not used later
	<-begun
	first, err := target.transport(used)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		m := mode{secure: true, tls: httproute.BackendTLS{Name: fmt.Sprint(i)}}
		if _, err := target.transport(m); err != nil {
			t.Fatal(err)
		}
		if again, err := target.transport(used); err != nil || again != first {
			t.Fatalf("after %d others, the mode in use has other connections: %v", i, err)
		}
	}
	if n := len(target.transports); n > mostModes {
		t.Errorf("%d transports are kept", n)
	}
	if target.transports[mode{upgrade: true}] != nil {
		t.Error("a mode that is not used is kept")
	}
	close(release)
	text, err := io.ReadAll(slow.Body)
	_ = slow.Body.Close()
	if err != nil || string(text) != "first last" {
		t.Errorf("the request in flight: %q %v", text, err)
	}
	res := get(used, "/")
	_ = res.Body.Close()
	target.closeIdle()
}

// When neighbours of a Service's endpoints end together, each request has others among its attempts; all get the same
// number of first attempts.
func TestNeighboursEndTogether(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 10, 99, 1000} {
		all := make([]*Target, n)
		index := map[*Target]int{}
		for i := range all {
			all[i] = &Target{}
			index[all[i]] = i
		}
		var r roundRobin
		firsts := make([]int, n)
		for range 3 * n {
			got, err := r.Pick(t.Context(), &Facts{}, all)
			if err != nil || len(got) != min(n, attempts) {
				t.Fatalf("%d of %d: %v", len(got), n, err)
			}
			firsts[index[got[0]]]++
			for i, one := range got {
				if slices.Contains(got[:i], one) {
					t.Fatalf("%d endpoints: one is tried twice", n)
				}
			}
			// Whichever third of all has ended, and the first one with it:
			for before := range n / 3 {
				ended := func(one *Target) bool { return (index[one]-index[got[0]]+before+n)%n < n/3 }
				if !slices.ContainsFunc(got, func(one *Target) bool { return !ended(one) }) {
					t.Fatalf("%d endpoints: all attempts are among %d neighbours", n, n/3)
				}
			}
		}
		if slices.Min(firsts) != 3 || slices.Max(firsts) != 3 {
			t.Errorf("%d endpoints are the first of %v requests", n, firsts)
		}
	}
}
