package app

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/base/instance"
	"carob/internal/network/unserved"
)

// machine tracks the current addresses of this machine.
type machine struct {
	in     instance.Instance
	find   func() []netip.Addr // current addresses, the preferred one first; nil: none
	ips    atomic.Pointer[[]netip.Addr]
	change func([]netip.Addr) // called by update after a change
}

func newMachine(in instance.Instance) *machine {
	m := &machine{in: in, find: foundIPs, change: func([]netip.Addr) {}}
	m.update()
	return m
}

// hostIPs are the addresses for the Node object, those of the default route's interface if it has some: at most one of
// each family, that of the pods' primary addresses first.
func (m *machine) hostIPs() []netip.Addr { return *m.ips.Load() }

// update reads the machine's addresses. A machine that has lost all of them, between two networks,
// keeps those it had. One that never had any uses the bridge's address, where pods reach it.
func (m *machine) update() {
	found, had := onePerFamily(m.find()), m.ips.Load()
	slices.SortStableFunc(found, func(a, b netip.Addr) int { // the family of the pods' primary addresses first
		return cmp.Compare(boolInt(a.Is6() != m.in.PodsPrefer6), boolInt(b.Is6() != m.in.PodsPrefer6))
	})
	if len(found) == 0 {
		if had != nil {
			return
		}
		found = []netip.Addr{m.in.BridgeAddress(m.in.PodsPrefer6)}
	}
	if had != nil && slices.Equal(*had, found) {
		return
	}
	m.ips.Store(&found)
	if had != nil {
		m.change(found)
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// foundIPs are the addresses of the default route's interface, then of all others.
func foundIPs() []netip.Addr {
	var all []netip.Addr
	if routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL); err == nil {
		slices.SortStableFunc(routes, func(a, b netlink.Route) int { return cmp.Compare(a.Priority, b.Priority) })
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
	return all
}

// addresses returns the permanent addresses of an interface: not temporary (privacy), deprecated,
// or tentative ones.
func addresses(link int) []netip.Addr {
	l, err := netlink.LinkByIndex(link)
	if err != nil {
		return nil
	}
	list, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil
	}
	var all []netip.Addr
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); !ok || !ip.IsGlobalUnicast() {
			continue
		}
		if ip.Is6() &&
			a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			continue
		}
		all = append(all, ip)
	}
	return all
}

// ownLink reports whether a link belongs to a container engine, this one or another.
func ownLink(name string) bool {
	return slices.ContainsFunc([]string{"carob", "cb-", "veth", "docker", "cni", "br-", "lxc", "virbr"},
		func(p string) bool { return strings.HasPrefix(name, p) })
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

// servicesTable rejects traffic to service addresses without endpoints.
func servicesTable(in instance.Instance) string { return in.NFTable + "-services" }

// unservedRanges updates the rejected ranges when the host's routes and rules change.
type unservedRanges struct {
	*unserved.Ranges
	log klog.Logger

	mu       sync.Mutex
	reported []unserved.Overlap
}

func (u *unservedRanges) sync() {
	taken, err := u.Sync()
	if err != nil {
		u.log.Error(err, "Cannot reject traffic to service addresses without endpoints; it leaves this host")
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range taken {
		if !slices.Contains(u.reported, o) {
			u.log.Error(nil, "This host has a route into the service range: choose another range with --service-cidr",
				"range", o.Range, "route", o.Route)
		}
	}
	u.reported = taken
}
