package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"

	"carob/internal/apiserver/auth"
	"carob/internal/base/instance"
	"carob/internal/network/dns"
)

// startDNS starts carob's own DNS, unless the settings choose another one.
func (c *carob) startDNS(ctx context.Context) error {
	if c.in.DNS == "none" {
		return nil
	}
	client, err := kubernetes.NewForConfig(c.server.ClientConfig(auth.DNSUser))
	if err != nil {
		return err
	}
	sources := c.in.PodRanges()
	if c.in.DNSDevice != "" {
		sources = nil // another network chooses the pods' addresses
		if err := addDevice(c.in.DNSDevice, c.in.DNSListen[0]); err != nil {
			return err
		}
	}
	resolver := c.in.ResolvConf
	if resolver == "" {
		// Servers on the host's loopback addresses, such as systemd-resolved's stub, are used as they are:
		// the DNS runs in the host's network.
		resolver = "/etc/resolv.conf"
	}
	server, err := dns.New(ctx, dns.Config{
		Client: client, Listen: c.in.DNSListen, Sources: sources, Domain: c.in.ClusterDomain,
		ClusterIPs: c.in.DNSService, Node: c.in.NodeName, ResolvConf: resolver, Register: legacyregistry.Registerer(),
	})
	if err != nil {
		return err
	}
	c.dns = server
	c.parts.start(ctx, "DNS", server.Run)
	return nil
}

// addDevice creates a network device that has one address and forwards nothing. It may exist
// already.
func addDevice(name string, addr netip.Addr) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) { // a kernel without dummy devices: a bridge without ports serves as well
		err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add network device %s for the DNS: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find network device %s for the DNS: %w", name, err)
	}
	if !leadsNowhere(link) {
		return fmt.Errorf("network device %s is a %s: another program uses the name", name, link.Type())
	}
	a := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}}
	if err := netlink.AddrReplace(link, a); err != nil {
		return fmt.Errorf("give %s to network device %s: %w", addr, name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("start network device %s: %w", name, err)
	}
	return nil
}

// leadsNowhere reports whether a device is of a type that addDevice adds.
func leadsNowhere(link netlink.Link) bool { return link.Type() == "dummy" || link.Type() == "bridge" }

// removeDevice removes what addDevice added; a missing device is not an error.
func removeDevice(in instance.Instance) error {
	if in.DNSDevice == "" {
		return nil
	}
	link, err := netlink.LinkByName(in.DNSDevice)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil
	}
	if err == nil && leadsNowhere(link) {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove network device %s: %w", in.DNSDevice, err)
	}
	return nil
}

// nameServers are the name servers of pods. Without the built-in service proxy, nothing may
// forward packets for the DNS Service: then pods use the address of the DNS server itself.
func (c *carob) nameServers() []netip.Addr {
	if c.in.ClusterDNS == "" && c.in.DNS != "none" && c.in.ServiceProxy == "none" {
		return c.in.DNSListen
	}
	return c.in.NameServers
}
