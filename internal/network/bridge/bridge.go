// Package bridge is carob's own pod network on one host: a bridge, a veth pair for each pod,
// addresses stored on disk, masquerading and host ports with nftables. The runtime drives it
// through network.PodNetwork; it must never depend on containers, and all names on the host come
// from its Config.
//
// A pod has its address with a full-length mask and reaches every address, including its
// neighbours, through the host's address on the bridge. So connection tracking sees both directions
// of every connection without br_netfilter, and there is one place to filter. If the host's
// firewall drops traffic, rules in its chains let pods through (firewall.go), or the bridge is put into a zone of
// firewalld (firewalld.go).
//
//	pod eth0 10.88.0.7/32 ── veth ── bridge 10.88.0.1/16 ── host routing, nftables ── world
//
// Attach takes a place (namespace and veth) from the pool, records the address, configures address
// and routes, and opens host ports. Each step may be repeated; a kill between two steps leaves a
// record that the next Attach completes or the next Sweep frees.
//
// Contract: docs/spec/network.md.
package bridge

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/base/errkind"
	"carob/internal/base/keylock"
	"carob/internal/base/netns"
	"carob/internal/network"
)

// Config has all names that this network uses on the host.
type Config struct {
	Bridge   string       // name of the bridge, at most 15 bytes
	Pods     netip.Prefix // IPv4 range of the pods, if any; the first address is the bridge's
	Pods6    netip.Prefix // IPv6 range of the pods, if any; one of the two is needed
	Prefer6  bool         // the first address of a pod is that of IPv6
	Table    string       // name of the nftables tables (ip and ip6, as there are ranges)
	StateDir string       // records that survive a reboot
	RunDir   string       // pinned namespaces; preferably below /run
	MTU      int          // 0: that of the default route's interface
	Pool     int          // maximum number of places in the pool; 0: 16, negative: none
	// OwnPorts are the TCP ports on which this carob listens: host ports of pods cannot take them.
	OwnPorts []netip.AddrPort
	// Gate makes the rules for a pod before it may send; nil: there are none.
	Gate network.Gate
}

// Network is an open pod network. All methods are safe for concurrent use.
type Network struct {
	cfg    Config
	nsDir  string
	mtu    atomic.Int32 // of new pods
	making sync.Mutex   // the bridge
	bridge atomic.Pointer[bridgeLink]
	ports  *portWatch
	healer *healer
	pool   *pool
	rules  *rules

	firewall  *hostFirewall
	firewalld *trustKeeper
	hostRules *rulesWatch

	rulesChanged atomic.Pointer[func()]
	flows        flows

	sandboxes keylock.Locks // sandboxes that are being attached or detached

	mu       sync.Mutex
	v4, v6   *addresses   // nil without a range
	ranges   []*addresses // those that are not nil, that of the pods' first address first
	attached map[string]*attachment
	journal  *journal
}

type bridgeLink struct {
	index int
	mac   net.HardwareAddr
}

var _ network.PodNetwork = (*Network)(nil)

// Open creates or finds the bridge and the nftables tables and loads the attachments. Kinds:
// Invalid for a config that cannot work here (an address range that the host uses otherwise, a name
// that is too long), Unsupported if the kernel lacks a feature, Denied without the right to
// administer the network.
func Open(ctx context.Context, cfg Config) (*Network, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n := &Network{cfg: cfg, nsDir: filepath.Join(cfg.RunDir, "netns"), attached: map[string]*attachment{}}
	if cfg.Pods.IsValid() {
		n.v4 = newAddresses(cfg.Pods)
		n.ranges = append(n.ranges, n.v4)
	}
	if cfg.Pods6.IsValid() {
		n.v6 = newAddresses(cfg.Pods6)
		n.ranges = append(n.ranges, n.v6)
	}
	if cfg.Prefer6 {
		slices.Reverse(n.ranges)
	}
	for _, dir := range []string{cfg.StateDir, n.nsDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("create directory of the pod network: %w", err)
		}
	}
	if err := n.start(ctx); err != nil {
		if n.journal != nil {
			_ = n.journal.close()
		}
		return nil, explain(err)
	}
	var err error
	n.healer = newHealer(n)
	if n.ports, err = watchPorts(n.healer.lost); err != nil {
		n.healer.close()
		_ = n.journal.close()
		return nil, explain(err)
	}
	if err := n.keepFirewall(ctx); err != nil {
		n.ports.close()
		n.healer.close()
		_ = n.journal.close()
		return nil, explain(err)
	}
	if cfg.Pool >= 0 {
		size := cfg.Pool
		if size == 0 {
			size = 16
		}
		n.pool = startPool(ctx, size, n.makeSpare, n.discard)
	}
	return n, nil
}

func (n *Network) start(ctx context.Context) error {
	if err := n.ensureBridge(); err != nil {
		return err
	}
	if err := n.load(); err != nil {
		return err
	}
	if n.cfg.Gate != nil {
		var places []network.Place
		for _, at := range n.attached {
			places = append(places, at.place())
		}
		n.cfg.Gate.Adopt(places)
	}
	n.rules = &rules{table: n.cfg.Table, bridge: n.cfg.Bridge, mac: n.bridgeMAC(), pods: n.cfg.Pods, pods6: n.cfg.Pods6,
		own: n.cfg.OwnPorts}
	if err := n.installRules(); err != nil {
		return err
	}
	if err := n.takeOver(); err != nil {
		return err
	}
	n.firewall = &hostFirewall{bridge: n.cfg.Bridge, name: n.cfg.Table}
	return errors.Join(n.dropUnknownNamespaces(ctx), n.dropUnknownNeighbours())
}

// Close stops the background work and removes spare namespaces. Attached pods
// keep their network.
func (n *Network) Close() error {
	if n.pool != nil {
		n.pool.close()
	}
	n.hostRules.close()
	n.firewalld.close()
	n.ports.close()
	n.healer.close()
	n.closeSockets()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.journal.close()
}

// Bounds of an MTU: of IPv4 (RFC 791), of IPv6 (RFC 8200), and of a packet.
const leastMTU, leastMTU6, mostMTU = 68, 1280, 65535

func (c Config) check() error {
	switch {
	case c.Bridge == "" || len(c.Bridge) > 15 || strings.ContainsAny(c.Bridge, "/ :"):
		return errkind.Errorf(errkind.Invalid,
			"bridge name %q is not a device name (1 to 15 bytes without '/', ':', and space)", c.Bridge)
	case !c.Pods.IsValid() && !c.Pods6.IsValid():
		return errkind.Errorf(errkind.Invalid, "the pod network needs a range of addresses for pods")
	case c.Pods.IsValid() && (!c.Pods.Addr().Is4() || c.Pods.Bits() > 29):
		return errkind.Errorf(errkind.Invalid,
			"pod address range %s is not an IPv4 range with enough addresses for pods (such as 10.88.0.0/16)", c.Pods)
	case c.Pods6.IsValid() && (!c.Pods6.Addr().Is6() || c.Pods6.Bits() > 120):
		return errkind.Errorf(errkind.Invalid,
			"pod address range %s is not an IPv6 range with enough addresses for pods (such as fd00:88::/64)", c.Pods6)
	case c.MTU != 0 && (c.MTU < leastMTU || c.MTU > mostMTU || c.Pods6.IsValid() && c.MTU < leastMTU6):
		return errkind.Errorf(errkind.Invalid, "an MTU of %d for pods is not within %d and %d (with IPv6 at least %d)",
			c.MTU, leastMTU, mostMTU, leastMTU6)
	case c.Table == "" || c.StateDir == "" || c.RunDir == "":
		return errkind.Errorf(errkind.Invalid,
			"the pod network needs the name of an nftables table and two directories")
	}
	return nil
}

// explain gives kernel errors a kind and adds what the administrator can do.
func explain(err error) error {
	switch {
	case err == nil || errkind.Of(err) != errkind.Unknown:
		return err
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return errkind.Errorf(errkind.Denied, "%w: run as root or with CAP_NET_ADMIN and CAP_SYS_ADMIN", err)
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT):
		return errkind.Errorf(errkind.Unsupported, "%w: the kernel lacks bridge, veth, or nf_tables", err)
	}
	return err
}

// ensureBridge creates the bridge or uses the existing one, and sets the host's sysctls that pods
// depend on.
func (n *Network) ensureBridge() error {
	n.making.Lock()
	defer n.making.Unlock()
	mtu := n.cfg.MTU
	if mtu == 0 {
		mtu = defaultMTU()
	}
	n.mtu.Store(int32(mtu))
	link, err := netlink.LinkByName(n.cfg.Bridge)
	var notFound netlink.LinkNotFoundError
	switch {
	case errors.As(err, &notFound):
		if err := n.checkOverlap(0); err != nil {
			return err
		}
		if link, err = n.makeBridge(); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("find bridge %s: %w", n.cfg.Bridge, err)
	}
	if _, ok := link.(*netlink.Bridge); !ok {
		return errkind.Errorf(errkind.Invalid, "network device %s exists and is a %s, not a bridge", n.cfg.Bridge,
			link.Type())
	}
	if err := n.checkOverlap(link.Attrs().Index); err != nil { // the range may have changed
		return err
	}
	for _, a := range n.ranges {
		addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a.gateway(), a.prefix.Bits()))}
		if a.prefix.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("give bridge %s the address %s: %w", n.cfg.Bridge, a.gateway(), err)
		}
	}
	mac := n.ownMAC()
	if !bytes.Equal(link.Attrs().HardwareAddr, mac) { // of another address range
		if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("set the hardware address of bridge %s: %w", n.cfg.Bridge, err)
		}
	}
	if link.Attrs().MTU != mtu { // the flag or the uplink changed; running pods keep theirs
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("set the MTU of bridge %s to %d: %w", n.cfg.Bridge, mtu, err)
		}
	}
	if err := n.dropOldAddresses(link); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("start bridge %s: %w", n.cfg.Bridge, err)
	}
	n.bridge.Store(&bridgeLink{index: link.Attrs().Index, mac: mac})
	return n.setHostSysctls()
}

// dropOldAddresses removes the addresses of a previous range from the bridge.
func (n *Network) dropOldAddresses(bridge netlink.Link) error {
	have, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(bridge, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list the addresses of bridge %s: %w", n.cfg.Bridge, err)
	}
	for _, a := range have {
		if ip, ok := netip.AddrFromSlice(a.IP); !ok || ip.Unmap().IsLinkLocalUnicast() ||
			slices.Contains(n.gateways(), ip.Unmap()) {
			continue
		}
		if err := netlink.AddrDel(bridge, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s from bridge %s: %w", a.IPNet, n.cfg.Bridge, err)
		}
	}
	return nil
}

func (n *Network) makeBridge() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = n.cfg.Bridge, int(n.mtu.Load())
	// A bridge without its own hardware address takes the address of a port, and changes it with
	// the ports.
	attrs.HardwareAddr = n.ownMAC()
	snooping := false
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return nil, fmt.Errorf("create bridge %s: %w", n.cfg.Bridge, err)
	}
	link, err := netlink.LinkByName(n.cfg.Bridge)
	if err != nil {
		return nil, fmt.Errorf("find bridge %s: %w", n.cfg.Bridge, err)
	}
	return link, nil
}

// checkOverlap rejects a pod range that the host reaches in another way than through our bridge.
func (n *Network) checkOverlap(own int) error {
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of the host: %w", err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		if !ok || own != 0 && a.LinkIndex == own {
			continue
		}
		have := netip.PrefixFrom(ip.Unmap(), ones)
		if slices.ContainsFunc(n.ranges, func(a *addresses) bool { return have.Overlaps(a.prefix) }) {
			return errkind.Errorf(errkind.Invalid,
				"the pod address range overlaps with %s on this host: choose another with --pod-cidr", have)
		}
	}
	return nil
}

func (n *Network) setHostSysctls() error {
	list := []sysctl{
		{"ipv4/ip_forward", "1"},
		// Pods reach each other through the host on purpose.
		{"ipv4/conf/" + n.cfg.Bridge + "/send_redirects", "0"},
		// A pod must not send routes to the host, nor get answers for other addresses.
		{"ipv4/conf/" + n.cfg.Bridge + "/accept_redirects", "0"},
		{"ipv4/conf/" + n.cfg.Bridge + "/accept_source_route", "0"},
		{"ipv4/conf/" + n.cfg.Bridge + "/proxy_arp", "0"},
		{"ipv6/conf/" + n.cfg.Bridge + "/accept_ra", "0"},
		{"ipv6/conf/" + n.cfg.Bridge + "/accept_redirects", "0"},
		{"ipv6/conf/" + n.cfg.Bridge + "/proxy_ndp", "0"},
		// For host ports on the loopback address; rules.go keeps pods from using it.
		{"ipv4/conf/" + n.cfg.Bridge + "/route_localnet", "1"},
	}
	if n.v6 == nil {
		list = append(list, sysctl{"ipv6/conf/" + n.cfg.Bridge + "/disable_ipv6", "1"})
	} else {
		list = append(list, forwardIPv6()...)
	}
	if err := setSysctls(list); err != nil {
		if body, rerr := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); rerr == nil &&
			strings.TrimSpace(string(body)) == "1" && errors.Is(err, unix.EROFS) {
			return nil // a container whose host has set it
		}
		return err
	}
	return nil
}

// forwardIPv6 enables IPv6 forwarding on the host. Forwarding makes the host's uplinks ignore
// router advertisements, so that they would lose their default route; accept_ra=2 prevents this.
func forwardIPv6() []sysctl {
	var list []sysctl
	const all = "ipv6/conf/all/forwarding"
	if readSysctl(all) == "0" {
		links, err := os.ReadDir("/proc/sys/net/ipv6/conf")
		if err != nil {
			return nil // no IPv6
		}
		for _, l := range links {
			if name := "ipv6/conf/" + l.Name() + "/accept_ra"; readSysctl(name) == "1" && l.Name() != "all" {
				list = append(list, sysctl{name, "2"})
			}
		}
	}
	return append(list, sysctl{all, "1"})
}

func readSysctl(name string) string {
	body, err := os.ReadFile("/proc/sys/net/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(body))
}

func defaultMTU() int {
	const ethernet = 1500
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
		})
		if err != nil {
			return ethernet
		}
		for _, r := range routes {
			if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil && l.Attrs().MTU > 0 {
				return l.Attrs().MTU
			}
		}
	}
	return ethernet
}

// load reads the journal, removes what a reboot ended, and writes the journal again.
func (n *Network) load() error {
	name := journalName(n.cfg.StateDir)
	err := readJournal(name, func(e entry) {
		switch {
		case e.Attach != nil:
			n.attached[e.Attach.Sandbox] = e.Attach
			for _, ip := range e.Attach.IPs {
				if a := n.rangeOf(ip); a != nil {
					_ = a.claim(ip, e.Attach.Sandbox)
					a.next = ip.Next()
				}
			}
		case e.Detach != "":
			n.forget(n.attached[e.Detach])
		case e.Past != nil:
			if a := n.rangeOf(e.Past.IP); a != nil {
				a.reserve(e.Past.UID, e.Past.IP)
			}
		case e.Next != nil:
			for _, ip := range e.Next {
				if a := n.rangeOf(ip); a != nil {
					a.next = ip
				}
			}
		}
	})
	if err != nil {
		return err
	}
	for _, at := range n.attached {
		// A pod with an address of another range has lost its network: its namespace is removed,
		// and the next Attach creates another one.
		foreign := slices.ContainsFunc(at.IPs, func(ip netip.Addr) bool { return n.rangeOf(ip) == nil })
		if foreign {
			n.forgetNeighbours(at.IPs)
		}
		if foreign || !netns.Pinned(at.NetNS) {
			n.forget(at)
		}
	}
	n.journal, err = rewriteJournal(name, n.entries())
	return err
}

// entries returns the current state as journal entries.
func (n *Network) entries() []entry {
	var list []entry
	var next []netip.Addr
	for _, a := range n.ranges {
		next = append(next, a.next)
		for _, p := range a.past {
			list = append(list, entry{Past: &pastEntry{UID: p.uid, IP: p.addr}})
		}
	}
	for _, at := range n.attached {
		list = append(list, entry{Attach: at})
	}
	return append(list, entry{Next: next})
}

func (n *Network) rangeOf(ip netip.Addr) *addresses {
	for _, a := range n.ranges {
		if a.prefix.Contains(ip) {
			return a
		}
	}
	return nil
}

// forget frees an attachment's addresses in memory.
func (n *Network) forget(at *attachment) {
	if at == nil {
		return
	}
	delete(n.attached, at.Sandbox)
	for _, ip := range at.IPs {
		if a := n.rangeOf(ip); a != nil && a.used[ip] == at.Sandbox {
			a.release(ip, at.UID)
		}
	}
}

// dropUnknownNamespaces removes pinned namespaces without an attachment: the pool of a killed
// process.
func (n *Network) dropUnknownNamespaces(ctx context.Context) error {
	entries, err := os.ReadDir(n.nsDir)
	if err != nil {
		return fmt.Errorf("list pinned network namespaces: %w", err)
	}
	known := map[string]bool{}
	for _, at := range n.attached {
		known[at.NetNS] = true
	}
	for _, e := range entries {
		if path := filepath.Join(n.nsDir, e.Name()); !known[path] {
			klog.FromContext(ctx).V(2).Info("Removing leftover network namespace", "path", path)
			if err := netns.Unpin(path); err != nil {
				return err
			}
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// macOf is the hardware address for an IPv4 address.
func macOf(ip netip.Addr) net.HardwareAddr {
	b := ip.As4()
	return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}

// ownMAC derives the bridge's hardware address from its IPv4 address, or else from its IPv6 address, so that a
// bridge that is created again has the address that pods have stored.
func (n *Network) ownMAC() net.HardwareAddr {
	if n.v4 != nil {
		return macOf(n.v4.gateway())
	}
	h := fnv.New32a()
	_, _ = h.Write(n.v6.gateway().AsSlice())
	return append(net.HardwareAddr{0x0a, 0x59}, binary.BigEndian.AppendUint32(nil, h.Sum32())...)
}

// dump repeats a netlink list until the kernel returns one that no change interrupted.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for {
		if got, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return got, err
		}
	}
}
