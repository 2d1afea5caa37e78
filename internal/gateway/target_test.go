package gateway

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/gatewayplan"
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
		var all []gatewayplan.Endpoint
		for i := range 1 + r.IntN(12) {
			if r.IntN(2) == 0 {
				continue
			}
			e := gatewayplan.Endpoint{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80),
				Pod: []types.UID{"a", "b"}[r.IntN(2)], Ending: r.IntN(4) == 0}
			all = append(all, e)
		}
		before := map[gatewayplan.Endpoint]*Target{}
		for of, target := range tr.targets {
			before[of] = target
		}
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
