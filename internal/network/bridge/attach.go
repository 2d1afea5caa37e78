package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/base/errkind"
	"carob/internal/base/netns"
	"carob/internal/network"
)

// Attach implements network.PodNetwork. Kinds: Exhausted if no address is free, InUse if another
// pod or a process of the host uses one of the host ports, Invalid for a malformed port.
func (n *Network) Attach(ctx context.Context, pod network.Pod) (network.Attachment, error) {
	pod.Ports = slices.Clone(pod.Ports)
	if err := checkPorts(pod.Ports); err != nil {
		return network.Attachment{}, err
	}
	done, err := n.lock(ctx, pod.SandboxID)
	if err != nil {
		return network.Attachment{}, err
	}
	defer done()
	n.mu.Lock()
	at := n.attached[pod.SandboxID]
	n.mu.Unlock()
	if at != nil && at.lost(pod) {
		if err := n.drop(at); err != nil {
			return network.Attachment{}, err
		}
		at = nil
	}
	if at == nil {
		if at, err = n.attachNew(ctx, pod); err != nil {
			return network.Attachment{}, explain(err)
		}
	} else if !at.ready || at.leaving {
		if err := n.finish(ctx, pod, at); err != nil {
			return network.Attachment{}, explain(err)
		}
	}
	return network.Attachment{NetNS: at.NetNS, IPs: slices.Clone(at.IPs)}, nil
}

func (n *Network) attachNew(ctx context.Context, pod network.Pod) (*attachment, error) {
	if err := checkListeners(ctx, pod); err != nil {
		return nil, err
	}
	p, err := n.takePlace(ctx, pod)
	if err != nil {
		return nil, err
	}
	defer p.close()
	at, err := n.reserve(pod, p)
	for errkind.Of(err) == errkind.Exhausted && n.pool != nil {
		spare := n.pool.take() // has addresses
		if spare == nil {
			break
		}
		n.discard(spare)
		at, err = n.reserve(pod, p)
	}
	if err != nil {
		n.discard(p)
		return nil, err
	}
	admitted := n.admit(ctx, pod, at)
	if len(p.ips) == 0 {
		err = n.configure(p.h, p.eth0, at.IPs, p.mac)
	}
	if err == nil {
		err = shape(p.h, p.eth0, at.Port, pod.Bandwidth)
	}
	if err = errors.Join(err, <-admitted); err == nil {
		err = n.rules.publish(at.published(), at.pin())
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach pod %s to the network: %w", at.Pod, err), n.drop(at))
	}
	n.mu.Lock()
	at.ready = true
	n.mu.Unlock()
	return at, nil
}

// admit waits for the gate, in parallel with other work. The pod can send only when its addresses are
// published.
func (n *Network) admit(ctx context.Context, pod network.Pod, at *attachment) <-chan error {
	answer := make(chan error, 1)
	if n.cfg.Gate == nil {
		answer <- nil
		return answer
	}
	p := at.place()
	p.Labels = pod.Labels
	go func() { answer <- n.cfg.Gate.Admit(ctx, p) }()
	return answer
}

// takePlace returns a spare place, or makes one: for a pod that gets its previous addresses, or with a
// namespace of its own.
func (n *Network) takePlace(ctx context.Context, pod network.Pod) (*place, error) {
	if n.pool != nil && pod.NetNS == "" && !n.isReserved(pod.UID) {
		if p := n.takeSpare(); p != nil {
			return p, nil
		}
	}
	p, err := n.makePlace(ctx, pod.NetNS)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		// The bridge was deleted from outside: create it again, once.
		if n.ensureBridge() == nil {
			p, err = n.makePlace(ctx, pod.NetNS)
		}
	}
	return p, err
}

// reserve records the addresses and ports of a pod before they are configured.
func (n *Network) reserve(pod network.Pod, p *place) (_ *attachment, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkPortsFree(pod); err != nil {
		return nil, err
	}
	at := &attachment{Sandbox: pod.SandboxID, UID: pod.UID, Pod: pod.Namespace + "/" + pod.Name, NetNS: p.path,
		Port: p.port, MAC: p.mac.String(), Ports: pod.Ports}
	if pod.External {
		at.Path = pod.NetNS
	}
	if len(p.ips) > 0 {
		at.IPs = p.ips
		for _, ip := range p.ips {
			n.rangeOf(ip).used[ip] = pod.SandboxID
		}
	} else if at.IPs, err = n.acquire(pod.UID, pod.SandboxID); err != nil {
		return nil, err
	}
	if err := n.journal.append(entry{Attach: at}); err != nil {
		n.forget(at)
		return nil, err
	}
	n.attached[at.Sandbox] = at
	return at, nil
}

// finish repeats the steps that a killed process may have left undone.
func (n *Network) finish(ctx context.Context, pod network.Pod, at *attachment) error {
	var h *netlink.Handle
	err := netns.Do(at.NetNS, func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		defer h.Close()
		var eth0 netlink.Link
		if eth0, err = h.LinkByName("eth0"); err == nil {
			n.mu.Lock()
			at.MAC, at.leaving = eth0.Attrs().HardwareAddr.String(), false
			n.mu.Unlock()
			err = errors.Join(n.settlePort(at.Port, at.mac()), n.addRoutes(h, eth0.Attrs().Index),
				n.configure(h, eth0.Attrs().Index, at.IPs, at.mac()),
				shape(h, eth0.Attrs().Index, at.Port, pod.Bandwidth), <-n.admit(ctx, pod, at))
		}
	}
	if err == nil {
		err = n.rules.publish(at.published(), at.pin())
	}
	if err != nil {
		return fmt.Errorf("finish attaching pod %s to the network: %w", at.Pod, err)
	}
	n.mu.Lock()
	at.ready = true
	n.mu.Unlock()
	return nil
}

// Detach implements network.PodNetwork.
func (n *Network) Detach(ctx context.Context, sandboxID string) error {
	return n.detachIf(ctx, sandboxID, func(*attachment) bool { return true })
}

// detachIf detaches a sandbox if that is still wanted when no other call is at work on it.
func (n *Network) detachIf(ctx context.Context, sandboxID string, wanted func(*attachment) bool) error {
	done, err := n.lock(ctx, sandboxID)
	if err != nil {
		return err
	}
	defer done()
	n.mu.Lock()
	at := n.attached[sandboxID]
	n.mu.Unlock()
	if at == nil || !wanted(at) {
		return nil
	}
	return explain(n.drop(at))
}

// drop undoes everything; the record is removed last, so that a failure can be retried. A full disk is no failure: pods
// must end for it to get room, and without the record the next process sees that the namespace is gone.
func (n *Network) drop(at *attachment) error {
	n.mu.Lock()
	at.leaving = true // a new installation of the rules omits it
	n.mu.Unlock()
	if err := n.rules.unpublish(at.published(), at.pin()); err != nil {
		return fmt.Errorf("remove host ports of pod %s: %w", at.Pod, err)
	}
	if err := n.unplug(at); err != nil {
		return err
	}
	if err := netns.Unpin(at.NetNS); err != nil {
		return fmt.Errorf("detach pod %s from the network: %w", at.Pod, err)
	}
	n.flows.forget(at.IPs)
	if n.cfg.Gate != nil {
		n.cfg.Gate.Free(at.Sandbox)
	}
	n.forgetNeighbours(at.IPs)
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.journal.append(entry{Detach: at.Sandbox})
	n.forget(at)
	if err == nil && n.journal.lines > 4*(len(n.attached)+2*reservedPods) {
		var fresh *journal
		if fresh, err = rewriteJournal(n.journal.name, n.entries()); err == nil {
			_ = n.journal.close()
			n.journal = fresh
		}
	}
	if err != nil {
		klog.Background().V(2).Info("The end of a pod is not in the journal of the pod network", "pod", at.Pod, "err", err)
	}
	return nil
}

// forgetNeighbours removes the host's neighbour entries for a pod's addresses: clients on the
// host then get an error after three seconds instead of the forty during which the kernel trusts an
// old entry.
func (n *Network) forgetNeighbours(ips []netip.Addr) {
	for _, ip := range ips {
		// There is no entry for a pod that the host never communicated with.
		_ = netlink.NeighDel(&netlink.Neigh{LinkIndex: n.bridge.Load().index, IP: ip.AsSlice()})
	}
}

// Ready implements network.PodNetwork: the bridge exists and is up. If it was deleted from outside,
// it is created again.
func (n *Network) Ready(context.Context) error {
	link, err := netlink.LinkByIndex(n.bridge.Load().index)
	if err == nil && link.Attrs().Name == n.cfg.Bridge && link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := n.ensureBridge(); err != nil {
		return fmt.Errorf("the pod network is down: %w", explain(err))
	}
	return nil
}

// Sweep implements network.PodNetwork.
func (n *Network) Sweep(ctx context.Context, live map[string]bool) error {
	return n.free(ctx, func(at *attachment) bool {
		return at.Path == "" && !live[at.Sandbox] || at.abandoned()
	})
}

// free detaches the sandboxes that are dead.
func (n *Network) free(ctx context.Context, isGone func(*attachment) bool) error {
	n.mu.Lock()
	var gone []string
	for id, at := range n.attached {
		if isGone(at) {
			gone = append(gone, id)
		}
	}
	n.mu.Unlock()
	slices.Sort(gone)
	var errs []error
	for _, id := range gone {
		klog.FromContext(ctx).V(2).Info("Freeing the network of a sandbox that no longer exists", "sandbox", id)
		errs = append(errs, n.detachIf(ctx, id, isGone))
	}
	return errors.Join(errs...)
}

// lock serializes calls for one sandbox.
func (n *Network) lock(ctx context.Context, sandbox string) (unlock func(), _ error) {
	if sandbox == "" {
		return nil, errkind.Errorf(errkind.Invalid, "cannot attach a pod without a sandbox ID")
	}
	return n.sandboxes.Acquire(ctx, sandbox)
}

func (n *Network) gateways() []netip.Addr {
	var g []netip.Addr
	for _, a := range n.ranges {
		g = append(g, a.gateway())
	}
	return g
}

// sticky is NTF_STICKY of linux/neighbour.h: the entry does not move to another port.
const sticky = 0x40

// configure sets the addresses of eth0 and the host's routes to them. It may be repeated.
func (n *Network) configure(h *netlink.Handle, eth0 int, ips []netip.Addr, mac net.HardwareAddr) error {
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: eth0}}
	for _, ip := range ips {
		addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(ip, ip.BitLen()))}
		if ip.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("add address %s: %w", ip, err)
		}
	}
	return n.setNeighbours(ips, mac)
}
