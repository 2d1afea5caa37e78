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

// machine knows the addresses of this machine as they are now.
type machine struct {
	in     instance.Instance
	find   func() []netip.Addr // what the machine has now, the best first; nil: none
	ips    atomic.Pointer[[]netip.Addr]
	change func([]netip.Addr) // told of other addresses, by look
}

func newMachine(in instance.Instance) *machine {
	m := &machine{in: in, find: foundIPs, change: func([]netip.Addr) {}}
	m.look()
	return m
}

// hostIPs are the addresses that the Node object shows: the one the default route
// uses first, at most one of each family.
func (m *machine) hostIPs() []netip.Addr { return *m.ips.Load() }

// look takes up the machine's addresses. A machine that has lost all of them, on its
// way from one network to the next, keeps those it had; one that never had any is its
// own: pods reach it at the bridge.
func (m *machine) look() {
	found, had := onePerFamily(m.find()), m.ips.Load()
	if len(found) == 0 {
		if had != nil {
			return
		}
		found = []netip.Addr{m.in.Pods.Masked().Addr().Next()}
	}
	if had != nil && slices.Equal(*had, found) {
		return
	}
	m.ips.Store(&found)
	if had != nil {
		m.change(found)
	}
}

// foundIPs are the addresses of the device that the default route uses, then of all others.
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

// addresses are those of a device that stay: not the ones that it changes for privacy,
// gives up, or only tries.
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
		if ip.Is6() && a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			continue
		}
		all = append(all, ip)
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

// servicesTable refuses what is sent to service addresses that nothing serves.
func servicesTable(in instance.Instance) string { return in.NFTable + "-services" }

// unservedRanges keeps the refusal in step with the host's routes and rules.
type unservedRanges struct {
	*unserved.Ranges
	log klog.Logger

	mu   sync.Mutex
	told []unserved.Overlap
}

func (u *unservedRanges) sync() {
	taken, err := u.Sync()
	if err != nil {
		u.log.Error(err, "What is sent to service addresses that nothing serves is not refused, it leaves this host")
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range taken {
		if !slices.Contains(u.told, o) {
			u.log.Error(nil, "This host has a route into the range of services: choose another with --service-cidr", "range", o.Range, "route", o.Route)
		}
	}
	u.told = taken
}
