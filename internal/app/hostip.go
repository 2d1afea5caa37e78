package app

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"carob/internal/base/instance"
)

// hostIPs are the addresses of this machine that its Node object shows: the one
// the default route uses first, at most one of each family.
func hostIPs(in instance.Instance) []netip.Addr {
	var all []netip.Addr
	if routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL); err == nil {
		for _, r := range routes {
			if r.Dst == nil || r.Dst.IP.IsUnspecified() {
				all = append(all, addresses(r.LinkIndex)...)
			}
		}
	}
	if links, err := net.Interfaces(); err == nil {
		for _, l := range links {
			if l.Flags&net.FlagUp != 0 && l.Flags&net.FlagLoopback == 0 && !ownLink(l.Name) {
				all = append(all, addresses(l.Index)...)
			}
		}
	}
	// A machine without any network is its own: pods reach it at the bridge.
	all = append(all, in.Pods.Masked().Addr().Next())
	return onePerFamily(all)
}

func addresses(link int) []netip.Addr {
	l, err := net.InterfaceByIndex(link)
	if err != nil {
		return nil
	}
	list, err := l.Addrs()
	if err != nil {
		return nil
	}
	var all []netip.Addr
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			all = append(all, p.Addr().Unmap())
		}
	}
	return all
}

// ownLink says whether a link belongs to a container engine, this one or another.
func ownLink(name string) bool {
	return slices.ContainsFunc([]string{"carob", "cb-", "veth", "docker", "cni", "br-", "lxc", "virbr"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

func onePerFamily(all []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range all {
		if !slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}
