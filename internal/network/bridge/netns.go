package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
)

// place is a network namespace with one end of a veth pair: everything that a pod needs except its
// addresses, which only a spare one has.
type place struct {
	path   string // where the namespace is pinned
	eth0   int    // index of the device in it
	port   int    // index of the other end, on the bridge
	name   string // of the other end
	bridge int    // index of the bridge
	mac    net.HardwareAddr
	ips    []netip.Addr    // of a spare place
	h      *netlink.Handle // netlink handle in the namespace
}

func (p *place) close() {
	if p.h != nil {
		p.h.Close()
		p.h = nil
	}
}

// randomName is unique on the host: the kernel frees the name of a deleted veth some time after its
// namespace, so names are never reused.
func randomName(prefix string) string {
	return prefix + strings.ToLower(rand.Text()[:15-len(prefix)])
}

// makePlace creates a namespace, or uses the one at the given path, pins it, and connects it to the
// bridge. On error nothing is left.
func (n *Network) makePlace(ctx context.Context, given string) (_ *place, err error) {
	p := &place{path: filepath.Join(n.nsDir, randomName("n"))}
	var ns *os.File
	if given == "" {
		ns, p.h, err = makeNetNS(p.path, n.podSysctls())
	} else {
		err = netns.Do(given, func() (err error) {
			ns, p.h, err = settle(p.path, n.podSysctls())
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	defer func() {
		if err != nil {
			p.close()
			_ = netns.Unpin(p.path)
		}
	}()
	if err := n.plug(ctx, p, ns, nil); err != nil {
		return nil, err
	}
	return p, nil
}

// plug connects a namespace to the bridge with a new veth pair; the pod's end has the given hardware address, or one
// that the kernel chooses. It returns when the port forwards.
func (n *Network) plug(ctx context.Context, p *place, ns *os.File, mac net.HardwareAddr) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex, attrs.Flags = randomName("veth"), n.bridge.Load().index, net.FlagUp
	attrs.MTU = int(n.mtu.Load())
	attrs.Group = groupOf(n.cfg.Table) // from the start: unpinned traffic does not pass
	// One message creates both ends, the one in the pod's namespace from the start.
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns.Fd()),
		PeerMTU: uint32(attrs.MTU), PeerHardwareAddr: mac}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("connect a network namespace to bridge %s: %w", n.cfg.Bridge, err)
	}
	p.port, p.name, p.bridge = veth.Attrs().Index, attrs.Name, attrs.MasterIndex
	// The host's end must not send packets of its own.
	if err := setSysctls([]sysctl{{"ipv6/conf/" + attrs.Name + "/disable_ipv6", "1"}}); err != nil {
		return err
	}
	forwarding := n.ports.expect(p.port)
	defer n.ports.forget(p.port)
	for _, name := range []string{"lo", "eth0"} {
		l, err := p.h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s in a new network namespace: %w", name, err)
		}
		if name == "eth0" {
			p.eth0, p.mac = l.Attrs().Index, l.Attrs().HardwareAddr
			if err := n.settlePort(p.port, p.mac); err != nil {
				return err
			}
		}
		if err := p.h.LinkSetUp(l); err != nil {
			return fmt.Errorf("start %s in a new network namespace: %w", name, err)
		}
	}
	if err := n.addRoutes(p.h, p.eth0); err != nil {
		return err
	}
	// Until the port forwards, the bridge drops packets: the first connection to the pod would wait
	// a second for its retransmission.
	late := time.NewTimer(forwardingTimeout)
	defer late.Stop()
	select {
	case <-forwarding:
	case <-late.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// addRoutes adds the default route through the host's address, with a permanent neighbour entry for
// it.
func (n *Network) addRoutes(h *netlink.Handle, eth0 int) error {
	for _, gw := range n.gateways() {
		if err := h.NeighSet(&netlink.Neigh{LinkIndex: eth0, State: netlink.NUD_PERMANENT, IP: gw.AsSlice(),
			HardwareAddr: n.bridgeMAC()}); err != nil {
			return fmt.Errorf("add a neighbour entry for %s in the pod: %w", gw, err)
		}
		toGateway := &netlink.Route{LinkIndex: eth0, Scope: netlink.SCOPE_LINK,
			Dst: ipNet(netip.PrefixFrom(gw, gw.BitLen()))}
		if err := h.RouteReplace(toGateway); err != nil {
			return fmt.Errorf("add route to %s: %w", gw, err)
		}
		if err := h.RouteReplace(&netlink.Route{LinkIndex: eth0, Gw: gw.AsSlice()}); err != nil {
			return fmt.Errorf("add default route: %w", err)
		}
	}
	return nil
}

// forwardingTimeout is the time after which a place is used although the kernel has not reported
// its port.
const forwardingTimeout = 100 * time.Millisecond

// sysctl is a file below /proc/sys/net and its value.
type sysctl struct{ name, value string }

// podSysctls are set in each namespace before its devices are created.
func (n *Network) podSysctls() []sysctl {
	s := []sysctl{
		// All traffic goes through the host, so redirects are ignored.
		{"ipv4/conf/all/accept_redirects", "0"},
		{"ipv4/conf/default/accept_redirects", "0"},
	}
	if n.v6 == nil {
		return append(s, sysctl{"ipv6/conf/default/disable_ipv6", "1"})
	}
	return append(s, sysctl{"ipv6/conf/default/accept_ra", "0"}, sysctl{"ipv6/conf/default/accept_dad", "0"},
		sysctl{"ipv6/conf/default/accept_redirects", "0"})
}

func setSysctls(list []sysctl) error {
	for _, s := range list {
		err := os.WriteFile("/proc/sys/net/"+s.name, []byte(s.value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return fmt.Errorf("set net.%s: %w", strings.ReplaceAll(s.name, "/", "."), err)
		}
	}
	return nil
}

// makeNetNS creates a namespace, pins it at path, and returns a netlink handle for it. The thread
// of the calling goroutine enters it and returns.
func makeNetNS(path string, sysctls []sysctl) (_ *os.File, _ *netlink.Handle, err error) {
	runtime.LockOSThread()
	home, err := os.Open(netns.Current)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, nil, fmt.Errorf("open the host's network namespace: %w", err)
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, nil, fmt.Errorf("create network namespace: %w", err)
	}
	ns, h, err := settle(path, sysctls)
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked, so it ends with this goroutine instead of running other
		// goroutines in the wrong namespace.
		err = errors.Join(err, fmt.Errorf("return to the host's network namespace: %w", back))
	} else {
		runtime.UnlockOSThread()
	}
	if err != nil {
		if ns != nil {
			ns.Close()
			h.Close()
			_ = netns.Unpin(path)
		}
		return nil, nil, err
	}
	return ns, h, nil
}

// settle pins the thread's namespace and prepares it.
func settle(path string, sysctls []sysctl) (*os.File, *netlink.Handle, error) {
	ns, err := os.Open(netns.Current)
	if err != nil {
		return nil, nil, fmt.Errorf("open network namespace: %w", err)
	}
	if err = setSysctls(sysctls); err == nil {
		err = netns.Pin(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), path)
	}
	var h *netlink.Handle
	if err == nil {
		if h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			_ = netns.Unpin(path)
			err = fmt.Errorf("open netlink in a network namespace: %w", err)
		}
	}
	if err != nil {
		ns.Close()
		return nil, nil, err
	}
	return ns, h, nil
}
