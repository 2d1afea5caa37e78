package app

import (
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"carob/internal/base/instance"
	"carob/internal/base/netns"
)

// The device of the DNS has its address, also on a kernel without dummy devices and when it is there already. A device
// of another program with its name is not changed.
func TestDeviceOfDNS(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	addr := netip.MustParseAddr("10.9.8.7")
	if err := netns.DoNew(func() error {
		for range 2 {
			if err := addDevice("cd-test", addr); err != nil {
				return err
			}
		}
		link, err := netlink.LinkByName("cd-test")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil || len(addrs) != 1 || addrs[0].IP.String() != addr.String() {
			t.Errorf("addresses %v, %v", addrs, err)
		}
		for range 2 {
			if err := removeDevice(instance.Instance{DNSDevice: "cd-test"}); err != nil {
				return err
			}
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "cd-other"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}); err != nil {
			return err
		}
		if err := addDevice("cd-other", addr); err == nil {
			t.Error("the device of somebody else was taken")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
