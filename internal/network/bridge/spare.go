package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"carob/internal/base/netns"
)

// makeSpare makes a place that has addresses already. Attaching a pod to it changes no device: each change of a device
// waits for the kernel's lock of all devices, which the removal of a namespace (for example, of the previous pod) holds
// for many milliseconds. Until the pod's pin is published, its port passes no packets.
func (n *Network) makeSpare(ctx context.Context) (*place, error) {
	p, err := n.makePlace(ctx, "")
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	p.ips, err = n.acquire("", p.path)
	n.mu.Unlock()
	if err == nil {
		err = n.configure(p.h, p.eth0, p.ips, p.mac)
	}
	if err != nil {
		n.discard(p)
		return nil, err
	}
	return p, nil
}

// takeSpare returns a place of the pool whose port is where it was made, or nil.
func (n *Network) takeSpare() *place {
	for p := n.pool.take(); p != nil; p = n.pool.take() {
		if n.connected(p) {
			return p
		}
		n.discard(p)
	}
	return nil
}

// connected reports whether the place's port is still on the bridge, according to sysfs, which needs no lock.
func (n *Network) connected(p *place) bool {
	const devices = "/sys/class/net/"
	if p.bridge != n.bridge.Load().index {
		return false // the bridge was created again
	}
	_, err := os.Lstat(devices + p.name + "/brport")
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Lstat(devices + n.cfg.Bridge)
		return err != nil // there is no sysfs
	}
	return true
}

// discard removes a place that no pod uses and frees its addresses.
func (n *Network) discard(p *place) {
	p.close()
	if err := netns.Unpin(p.path); err != nil {
		// The next start removes it.
		klog.Background().Error(err, "Cannot remove a network namespace without a pod", "path", p.path)
		return
	}
	n.mu.Lock()
	ips := slices.DeleteFunc(slices.Clone(p.ips), func(ip netip.Addr) bool { return n.rangeOf(ip).used[ip] != p.path })
	n.mu.Unlock()
	n.forgetNeighbours(ips)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ip := range ips {
		delete(n.rangeOf(ip).used, ip)
	}
}

// acquire allocates an address of each family to a sandbox or spare place. n.mu is held.
func (n *Network) acquire(uid, owner string) (ips []netip.Addr, _ error) {
	for _, a := range n.ranges {
		ip, err := a.acquire(uid, owner)
		if err != nil {
			for _, ip := range ips {
				n.rangeOf(ip).release(ip, uid)
			}
			return nil, err
		}
		ips = append(ips, ip)
	}
	return ips, nil
}

// isReserved reports whether the pod had addresses before.
func (n *Network) isReserved(uid string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.ranges, func(a *addresses) bool { return a.isReserved(uid) })
}

// dropUnknownNeighbours removes the neighbour entries of the spare places of a killed process.
func (n *Network) dropUnknownNeighbours() error {
	bridge := n.bridge.Load().index
	have, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(bridge, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list the neighbours on bridge %s: %w", n.cfg.Bridge, err)
	}
	var stale []netip.Addr
	for _, e := range have {
		ip, ok := netip.AddrFromSlice(e.IP)
		if ip = ip.Unmap(); !ok || e.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		if a := n.rangeOf(ip); a != nil && a.used[ip] == "" && !slices.Contains(n.gateways(), ip) {
			stale = append(stale, ip)
		}
	}
	n.forgetNeighbours(stale)
	return nil
}
