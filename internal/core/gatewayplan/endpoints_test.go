package gatewayplan

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// Endpoints are in the order of their addresses, with one of each, that of the first pod: only those of IPv4, of both
// families, and more than an index of 16 bits has.
func TestOrderOfEndpoints(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	six := netip.MustParseAddr("fd00::1").As16()
	for i := range 301 {
		n, both := r.IntN(40), i%3 == 0
		if i == 300 {
			n, both = 1<<16+5, false
		}
		all := make([]Endpoint, n)
		for j := range all {
			last := byte(r.IntN(8))
			addr := netip.AddrFrom4([4]byte{byte(r.IntN(2) * 200), 0, byte(r.IntN(2)), last})
			if both && r.IntN(2) == 0 {
				six[15] = last
				addr = netip.AddrFrom16(six)
			}
			all[j] = Endpoint{Address: netip.AddrPortFrom(addr, uint16(80+r.IntN(2)*60000)),
				Pod: types.UID(fmt.Sprint(r.IntN(3)))}
		}
		want := slices.Clone(all)
		slices.SortFunc(want, func(a, b Endpoint) int {
			return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Pod, b.Pod))
		})
		want = slices.CompactFunc(want, func(a, b Endpoint) bool { return a.Address == b.Address })
		if got := ordered(all); !slices.Equal(got, want) {
			t.Fatalf("%v: %v, want %v", all[:min(n, 40)], got, want)
		}
	}
}
