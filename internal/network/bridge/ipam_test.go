package bridge

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"carob/internal/base/errkind"
)

func TestSamePodSameAddress(t *testing.T) {
	a := newAddresses(netip.MustParsePrefix("10.9.0.0/24"))
	first, err := a.acquire("u1", "s1")
	if err != nil || first != netip.MustParseAddr("10.9.0.2") {
		t.Fatal(first, err)
	}
	a.release(first, "u1")
	for i := range 20 {
		if got, err := a.acquire(fmt.Sprint("other", i), fmt.Sprint("so", i)); err != nil || got == first {
			t.Fatalf("another pod got %s, %v", got, err)
		}
	}
	if again, err := a.acquire("u1", "s2"); err != nil || again != first {
		t.Errorf("the pod came back as %s, was %s (%v)", again, first, err)
	}
}

// Invariants: an address has one owner, reserved addresses have none, the range is used up before
// an address kept for a detached pod is reused, and an allocation succeeds while an address is
// free.
func TestAddressInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix := netip.PrefixFrom(netip.MustParseAddr("10.9.0.0"), rapid.IntRange(26, 29).Draw(t, "bits"))
		a := newAddresses(prefix)
		room := 1<<(32-prefix.Bits()) - 3
		owner := map[netip.Addr]string{} // → uid
		serial := 0
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				uid := fmt.Sprint("u", rapid.IntRange(0, 40).Draw(t, "uid"))
				serial++
				ip, err := a.acquire(uid, fmt.Sprint("s", serial))
				if len(owner) == room {
					if !errkind.Is(err, errkind.Exhausted) {
						t.Fatalf("full range gave %s, %v", ip, err)
					}
					return
				}
				if err != nil {
					t.Fatalf("%d of %d in use: %v", len(owner), room, err)
				}
				if owner[ip] != "" || !prefix.Contains(ip) || ip == prefix.Addr() || ip == a.gateway() ||
					!prefix.Contains(ip.Next()) {
					t.Fatalf("%s given, owner %q", ip, owner[ip])
				}
				owner[ip] = uid
			},
			"release": func(t *rapid.T) {
				if len(owner) == 0 {
					t.Skip("nothing to release")
				}
				ip := rapid.SampledFrom(sortedAddrs(owner)).Draw(t, "ip")
				a.release(ip, owner[ip])
				delete(owner, ip)
			},
		})
	})
}

func sortedAddrs(m map[netip.Addr]string) []netip.Addr {
	var list []netip.Addr
	for ip := netip.MustParseAddr("10.9.0.0"); len(list) < len(m); ip = ip.Next() {
		if m[ip] != "" {
			list = append(list, ip)
		}
	}
	return list
}
