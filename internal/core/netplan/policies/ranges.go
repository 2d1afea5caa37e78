package policies

import (
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// addrRange is a range of addresses of one family; both ends belong to it.
type addrRange struct{ from, to netip.Addr }

// prefixOf reads a CIDR as the API has accepted it. Objects of earlier releases may have leading
// zeros, and IPv4 addresses in the form of IPv6 (N0.8), which stand for the IPv4 range.
func prefixOf(cidr string) (netip.Prefix, bool) {
	if addr, bits, ok := strings.Cut(cidr, "/"); ok && !strings.Contains(addr, ":") {
		octets := strings.Split(addr, ".")
		for i, o := range octets {
			if o = strings.TrimLeft(o, "0"); o == "" && octets[i] != "" {
				o = "0"
			}
			octets[i] = o
		}
		cidr = strings.Join(octets, ".") + "/" + bits
	}
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return p, false
	}
	const mapped = 96
	if p.Addr().Is4In6() && p.Bits() >= mapped {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return p.Masked(), true
}

func rangeOf(p netip.Prefix) addrRange {
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	to, _ := netip.AddrFromSlice(last)
	return addrRange{p.Addr(), to}
}

// blockRanges returns the ranges of a peer's ipBlock, without its exceptions. A block that cannot
// be parsed is empty.
func blockRanges(b *networkingv1.IPBlock) []addrRange {
	p, ok := prefixOf(b.CIDR)
	if !ok {
		return nil
	}
	var except []addrRange
	for _, cidr := range b.Except {
		if e, ok := prefixOf(cidr); ok && e.Addr().Is4() == p.Addr().Is4() {
			except = append(except, rangeOf(e))
		} else if !ok {
			return nil // an unreadable exception excludes the whole block
		}
	}
	return subtract(rangeOf(p), merge(except))
}

// subtract removes disjoint, sorted ranges from one.
func subtract(r addrRange, except []addrRange) []addrRange {
	var out []addrRange
	from := r.from
	for _, e := range except {
		if e.to.Less(from) {
			continue
		}
		if r.to.Less(e.from) {
			break
		}
		if from.Less(e.from) {
			out = append(out, addrRange{from, e.from.Prev()})
		}
		if from = e.to.Next(); !from.IsValid() || r.to.Less(from) { // it is the last address
			return out
		}
	}
	return append(out, addrRange{from, r.to})
}

// merge sorts ranges of one family and joins those that overlap or touch.
func merge(list []addrRange) []addrRange {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b addrRange) int { return a.from.Compare(b.from) })
	var out []addrRange
	for _, r := range list {
		if n := len(out); n > 0 {
			// Next of the last address is invalid, and compares less than all others.
			if last := &out[n-1]; !last.to.Next().IsValid() || !last.to.Next().Less(r.from) {
				if last.to.Less(r.to) {
					last.to = r.to
				}
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

type portRange struct{ from, to uint16 }

func mergePorts(list []portRange) []portRange {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b portRange) int { return int(a.from) - int(b.from) })
	var out []portRange
	for _, r := range list {
		if n := len(out); n > 0 && uint32(r.from) <= uint32(out[n-1].to)+1 {
			out[n-1].to = max(out[n-1].to, r.to)
			continue
		}
		out = append(out, r)
	}
	return out
}
