package services

import (
	"math/rand/v2"
	"net/netip"

	"carob/internal/base/errkind"
)

// addresses are the usable addresses of a range, counted from 0: all but the first, and for IPv4
// the last.
type addresses struct {
	prefix netip.Prefix
	size   uint64
	// Random allocation prefers the upper part, so that it rarely collides with explicitly
	// requested addresses, which users usually choose from the lower end.
	reserved uint64
}

// mostBits limits the number of used addresses of an IPv6 range.
const mostBits = 48

// rangeOf returns the addresses of a prefix; a very small one has none.
func rangeOf(prefix netip.Prefix) addresses {
	prefix = prefix.Masked()
	all := uint64(1) << min(prefix.Addr().BitLen()-prefix.Bits(), mostBits)
	a := addresses{prefix: prefix, size: all - 1}
	if prefix.Addr().Is4() && a.size > 0 {
		a.size--
	}
	if all > 16 {
		a.reserved = min(max(16, all/16), 256)
	}
	return a
}

// checkRange rejects an unusable range.
func checkRange(prefix netip.Prefix) error {
	if prefix.Addr().BitLen()-prefix.Bits() < 3 {
		return errkind.Errorf(errkind.Invalid, "the service range %v is too small: it needs at least 8 addresses",
			prefix)
	}
	return nil
}

// at returns the i-th usable address.
func (a addresses) at(i uint64) netip.Addr {
	b := a.prefix.Addr().As16()
	for k, carry := 15, i+1; k >= 0 && carry > 0; k-- {
		carry += uint64(b[k])
		b[k] = byte(carry)
		carry >>= 8
	}
	addr := netip.AddrFrom16(b)
	if a.prefix.Addr().Is4() {
		return addr.Unmap()
	}
	return addr
}

// first returns the address of the kubernetes Service.
func (a addresses) first() netip.Addr { return a.at(0) }

// has reports whether ip is usable.
func (a addresses) has(ip netip.Addr) bool {
	return a.size > 0 && a.prefix.Contains(ip) && ip != a.prefix.Addr() && !(ip.Is4() && ip == a.at(a.size))
}

// any returns a random address in the upper part.
func (a addresses) any() netip.Addr { return a.at(a.reserved + rand.Uint64N(a.size-a.reserved)) }

// free returns an address that is not in used, from the lower part only if the upper one is full;
// false if all are used.
func (a addresses) free(used map[netip.Addr]bool) (netip.Addr, bool) {
	for _, part := range [][2]uint64{{a.reserved, a.size}, {0, a.reserved}} {
		n := part[1] - part[0]
		if n == 0 {
			continue
		}
		start := rand.Uint64N(n)
		for i := range n {
			if ip := a.at(part[0] + (start+i)%n); !used[ip] {
				return ip, true
			}
		}
	}
	return netip.Addr{}, false
}
