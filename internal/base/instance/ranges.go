package instance

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// podRanges parses the ranges of pods.
func (in *Instance) podRanges() error {
	list := strings.Split(in.PodCIDR, ",")
	in.Pods, in.Pods6, in.PodsPrefer6 = netip.Prefix{}, netip.Prefix{}, false
	for i, text := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		switch {
		case err != nil:
			return fmt.Errorf("%q is not an IP range in CIDR notation, such as 10.88.0.0/16 or fd00:88::/64", text)
		case p.Addr().Is4() && p.Bits() <= 29 && !in.Pods.IsValid():
			in.Pods = p
		case p.Addr().Is6() && !p.Addr().Is4In6() && p.Bits() <= 120 && !in.Pods6.IsValid():
			in.Pods6, in.PodsPrefer6 = p, i == 0
		default:
			return fmt.Errorf("%q is not an IPv4 range with at least 8 addresses, an IPv6 range with at least 256, "+
				"or one of each", in.PodCIDR)
		}
	}
	return nil
}

// checkMTU validates the MTU; the ranges of pods are known.
func (in *Instance) checkMTU() error {
	if in.PodMTU != 0 && (in.CNIConfDir != "" || in.RuntimeEndpoint != "") {
		return fmt.Errorf(
			"%w --pod-mtu: it is for carob's own pod network: set the MTU in the configuration of the other one", ErrFlag)
	}
	least := 68 // RFC 791
	if in.Pods6.IsValid() {
		least = 1280 // RFC 8200
	}
	if in.PodMTU != 0 && (in.PodMTU < least || in.PodMTU > 65535) {
		return fmt.Errorf("%w --pod-mtu: %d is not within %d and 65535", ErrFlag, in.PodMTU, least)
	}
	return nil
}

// PodRanges are the ranges of pods, that of the primary addresses first.
func (in *Instance) PodRanges() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []netip.Prefix{in.Pods, in.Pods6} {
		if p.IsValid() {
			out = append(out, p)
		}
	}
	if in.PodsPrefer6 {
		slices.Reverse(out)
	}
	return out
}

// BridgeAddress is the address of carob's bridge in a family: the first one of the range of pods. It is invalid
// without such a range.
func (in *Instance) BridgeAddress(v6 bool) netip.Addr {
	p := in.Pods
	if v6 {
		p = in.Pods6
	}
	if !p.IsValid() {
		return netip.Addr{}
	}
	return p.Masked().Addr().Next()
}

// servicesLike are ranges of services of the families that the pods have, in the same order: the given one of IPv4,
// and one of IPv6.
func (in *Instance) servicesLike(pods string, n uint32, four string) string {
	if !strings.Contains(pods, ":") {
		return four
	}
	six := "fd00:96::/112"
	if in.ID != "carob" {
		six = fmt.Sprintf("fd00:96:%x:%x::/112", n>>16, n&0xffff)
	}
	first, _, _ := strings.Cut(pods, ",")
	switch {
	case !strings.Contains(pods, "."):
		return six
	case strings.Contains(first, "."):
		return four + "," + six
	}
	return six + "," + four
}

// overlap reports whether ranges of two lists overlap; lists that do not parse are ignored.
func overlap(a, b string) bool {
	x, err := serviceRanges(a)
	y, err2 := serviceRanges(b)
	return err == nil && err2 == nil && slices.ContainsFunc(x, func(p netip.Prefix) bool {
		return slices.ContainsFunc(y, p.Overlaps)
	})
}

// serviceRanges parses a list of ranges: at most one of each family, each with at least eight
// addresses.
func serviceRanges(list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for s := range strings.SplitSeq(list, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			return nil, fmt.Errorf("%q is not an IP range in CIDR notation, such as 10.96.0.0/16", s)
		}
		if p.Addr().BitLen()-p.Bits() < 3 {
			return nil, fmt.Errorf("%s is too small: it needs at least 8 addresses", p)
		}
		out = append(out, p.Masked())
	}
	if len(out) > 2 || len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4() {
		return nil, fmt.Errorf("%s: use one range, or one of IPv4 and one of IPv6", list)
	}
	return out, nil
}

// portRange parses FIRST-LAST or FIRST+COUNT.
func portRange(s string) ([2]int, error) {
	var first, second int
	number := func(s string) int {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil {
			return -1
		}
		return n
	}
	if a, b, ok := strings.Cut(s, "+"); ok {
		first, second = number(a), number(b)
		if second > 0 {
			second += first - 1
		}
	} else if a, b, ok := strings.Cut(s, "-"); ok {
		first, second = number(a), number(b)
	} else {
		first = -1
	}
	if first < 1 || second < first || second > 65535 {
		return [2]int{}, fmt.Errorf("%q is not FIRST-LAST or FIRST+COUNT within 1-65535", s)
	}
	return [2]int{first, second}, nil
}

// block20 is the i-th /20 of 10.FIRST.0.0/10.
func block20(first, i uint32) string {
	return fmt.Sprintf("10.%d.%d.0/20", first+i/16, i%16*16)
}

// bridgeName returns a name within the kernel's limit of 15 bytes.
func bridgeName(id string) string {
	if id == "carob" {
		return "carob0"
	}
	return "cb-" + strings.TrimPrefix(id, "carob-")
}
