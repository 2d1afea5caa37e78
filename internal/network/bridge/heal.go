package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/base/netns"
)

// healer recreates what another program deleted: the bridge, and the devices of pods. The kernel's notifications start
// a check, but only for devices of this network, and each check is followed by a pause: a program that deletes devices
// in a loop causes no more work than that.
type healer struct {
	n      *Network
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1
	done   chan struct{}
}

const healRest = time.Second

func newHealer(n *Network) *healer {
	ctx, cancel := context.WithCancel(context.Background())
	h := &healer{n: n, cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go h.run(ctx)
	return h
}

func (h *healer) close() {
	h.cancel()
	<-h.done
}

// lost handles notifications of devices that were deleted or stopped.
func (h *healer) lost(index int) {
	if index != 0 && index != h.n.bridge.Load().index && !h.n.ownsPort(index) {
		return
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// ownsPort reports whether a port belongs to a pod that should have its network.
func (n *Network) ownsPort(index int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, at := range n.attached {
		if at.Port == index {
			return at.ready && !at.leaving
		}
	}
	return false
}

func (h *healer) run(ctx context.Context) {
	defer close(h.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		if err := h.n.heal(ctx); err != nil && ctx.Err() == nil {
			klog.Background().Error(err, "Cannot recreate the pod network, which another program deleted; trying again")
			h.lost(0)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(healRest):
		}
	}
}

// heal recreates the bridge if it is missing or down, and the ports of pods that are missing or not attached to it.
func (n *Network) heal(ctx context.Context) error {
	if err := n.Ready(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	var sandboxes []string
	for id, at := range n.attached {
		if at.ready && !at.leaving {
			sandboxes = append(sandboxes, id)
		}
	}
	n.mu.Unlock()
	var errs []error
	for _, id := range sandboxes {
		errs = append(errs, n.healPort(ctx, id))
	}
	return errors.Join(errs...)
}

func (n *Network) healPort(ctx context.Context, sandbox string) error {
	done, err := n.lock(ctx, sandbox)
	if err != nil {
		return err
	}
	defer done()
	n.mu.Lock()
	at := n.attached[sandbox]
	n.mu.Unlock()
	if at == nil || at.leaving || !netns.Pinned(at.NetNS) {
		return nil
	}
	link, err := netlink.LinkByIndex(at.Port)
	bridge := n.bridge.Load().index
	switch _, missing := errors.AsType[netlink.LinkNotFoundError](err); {
	case missing:
		err = n.replug(ctx, at)
	case err != nil || link.Attrs().MasterIndex == bridge && link.Attrs().Flags&net.FlagUp != 0:
	default:
		err = errors.Join(netlink.LinkSetMaster(link, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: bridge}}),
			netlink.LinkSetUp(link), n.settlePort(at.Port, at.mac()), n.setNeighbours(at.IPs, at.mac()))
	}
	if err != nil {
		return fmt.Errorf("connect pod %s to the network again: %w", at.Pod, err)
	}
	return nil
}

// replug gives a pod a new device with its hardware address and its addresses. A limit of bandwidth is not restored.
func (n *Network) replug(ctx context.Context, at *attachment) error {
	ns, err := os.Open(at.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	p := &place{path: at.NetNS}
	defer p.close()
	if err := netns.Do(at.NetNS, func() (err error) {
		p.h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}); err != nil {
		return err
	}
	if err := n.plug(ctx, p, ns, at.mac()); err != nil {
		return err
	}
	old := at.pin()
	n.mu.Lock()
	at.Port = p.port
	err = n.journal.append(entry{Attach: at})
	n.mu.Unlock()
	if err != nil {
		return err
	}
	return errors.Join(n.configure(p.h, p.eth0, at.IPs, at.mac()), n.rules.unpublish(nil, old),
		n.rules.publish(nil, at.pin()))
}
