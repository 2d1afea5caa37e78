// Package addresspool decides which addresses of a pool the Services of type LoadBalancer get, by the same
// rules as MetalLB: an address may be requested, Services with the same sharing key may share one, and
// addresses in the status of a Service are kept. Services with a loadBalancerClass belong to other
// controllers. The package must never look at a clock or at the API; internal/network/services drives
// it.
//
// Contract: N2.30 and N11.14 in docs/spec/network.md.
package addresspool

import (
	"fmt"
	"iter"
	"net/netip"
	"strings"
)

// addresses is a range of addresses of one family, from first to last.
type addresses struct{ first, last netip.Addr }

// Pool is a set of addresses in the order in which they are given out. The zero Pool has none.
type Pool struct{ ranges []addresses }

// Parse reads ranges as CIDR or FIRST-LAST, separated by commas.
func Parse(list string) (Pool, error) {
	var p Pool
	for text := range strings.SplitSeq(list, ",") {
		r, err := parseRange(strings.TrimSpace(text))
		if err != nil {
			return Pool{}, err
		}
		for _, have := range p.ranges {
			if have.first.Is4() == r.first.Is4() && !have.last.Less(r.first) && !r.last.Less(have.first) {
				return Pool{}, fmt.Errorf("%s overlaps another range", text)
			}
		}
		p.ranges = append(p.ranges, r)
	}
	return p, nil
}

func parseRange(text string) (r addresses, err error) {
	if first, last, ok := strings.Cut(text, "-"); ok {
		if r.first, err = netip.ParseAddr(strings.TrimSpace(first)); err == nil {
			r.last, err = netip.ParseAddr(strings.TrimSpace(last))
		}
		if err != nil || r.first.Is4() != r.last.Is4() || r.last.Less(r.first) {
			return r, fmt.Errorf("%q is not FIRST-LAST, such as 192.0.2.10-192.0.2.20", text)
		}
	} else {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return r, fmt.Errorf("%q is neither a range in CIDR notation nor FIRST-LAST", text)
		}
		r = addresses{p.Masked().Addr(), lastOf(p)}
	}
	for _, a := range []netip.Addr{r.first, r.last} {
		if a.Zone() != "" || a.Is4In6() || !a.IsGlobalUnicast() {
			return r, fmt.Errorf("%s contains addresses that no Service can have, such as %s", text, a)
		}
	}
	return r, nil
}

// lastOf returns the highest address of a range.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Contains reports whether an address is in the pool.
func (p Pool) Contains(a netip.Addr) bool {
	for _, r := range p.ranges {
		if r.first.Is4() == a.Is4() && !a.Less(r.first) && !r.last.Less(a) {
			return true
		}
	}
	return false
}

// Overlaps reports whether the pool has an address of a range.
func (p Pool) Overlaps(with netip.Prefix) bool {
	first, last := with.Masked().Addr(), lastOf(with)
	for _, r := range p.ranges {
		if r.first.Is4() == first.Is4() && !last.Less(r.first) && !r.last.Less(first) {
			return true
		}
	}
	return false
}

// has reports whether the pool has addresses of a family.
func (p Pool) has(v6 bool) bool {
	for range p.all(v6) {
		return true
	}
	return false
}

// all yields the addresses of a family.
func (p Pool) all(v6 bool) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, r := range p.ranges {
			if r.first.Is6() != v6 {
				continue
			}
			for a := r.first; ; a = a.Next() {
				if !yield(a) {
					return
				}
				if a == r.last {
					break
				}
			}
		}
	}
}
