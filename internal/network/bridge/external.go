package bridge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// Other container runtimes make the network namespaces of their pods themselves, and have them attached
// through the CNI plugin. Their runtime removes such a namespace after DEL. One whose path is gone, or leads to another
// namespace, belongs to a pod that has ended without DEL: Sweep frees it.

// sameNamespace reports whether two paths lead to one namespace.
func sameNamespace(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// lost reports whether an attachment cannot be used any more for this pod.
func (at *attachment) lost(pod network.Pod) bool {
	if !netns.Pinned(at.NetNS) {
		return true // the namespace was removed from outside
	}
	return pod.External && !sameNamespace(at.NetNS, pod.NetNS)
}

// abandoned reports whether the runtime of an external attachment has removed the namespace.
func (at *attachment) abandoned() bool { return at.Path != "" && !sameNamespace(at.NetNS, at.Path) }

// unplug removes the device of a pod whose namespace may outlive the attachment.
func (n *Network) unplug(at *attachment) error {
	if at.Path == "" {
		return nil
	}
	link, err := netlink.LinkByIndex(at.Port)
	var notFound netlink.LinkNotFoundError
	switch {
	case errors.As(err, &notFound):
		return nil
	case err != nil:
		return fmt.Errorf("find the device of pod %s: %w", at.Pod, err)
	}
	if link.Type() != "veth" || link.Attrs().MasterIndex != n.bridge.Load().index {
		return nil // the index has been given to another device
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove the device of pod %s: %w", at.Pod, err)
	}
	return nil
}

// Find returns the device of a sandbox that is attached; ok is false if it is not.
func (n *Network) Find(sandboxID string) (_ network.Device, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := n.attached[sandboxID]
	if at == nil || at.leaving || !netns.Pinned(at.NetNS) {
		return network.Device{}, false
	}
	return network.Device{IPs: slices.Clone(at.IPs), Gateways: n.gateways(), MAC: at.MAC}, true
}

// Collect frees the attachments whose namespace another container runtime has removed.
func (n *Network) Collect(ctx context.Context) error {
	return n.free(ctx, (*attachment).abandoned)
}
