package instance

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// DefaultClusterDomain is the domain of the names of Services and pods.
const DefaultClusterDomain = "cluster.local"

// dnsIndex is the position of the DNS Service in the service range, as with kubeadm; smallIndex
// is the position in a range with fewer addresses.
const dnsIndex, smallIndex = 10, 2

var domainPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)

// reachedByPods are the addresses of the families that pods have; all, if another network chooses their addresses.
func (in *Instance) reachedByPods(all []netip.Addr) []netip.Addr {
	out := slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return !in.BridgeAddress(a.Is6()).IsValid() })
	if len(out) == 0 || in.CNIConfDir != "" || in.RuntimeEndpoint != "" {
		return slices.Clone(all)
	}
	return out
}

// deriveDNS completes what belongs to the cluster's DNS; the ranges are known.
func (in *Instance) deriveDNS(n uint32) error {
	if in.DNS == "" {
		in.DNS = "builtin"
	}
	if in.DNS != "builtin" && in.DNS != "none" {
		return fmt.Errorf("%w --dns: %q is neither builtin nor none", ErrFlag, in.DNS)
	}
	if in.ClusterDomain == "" {
		in.ClusterDomain = DefaultClusterDomain
	}
	// Then the longest name of an endpoint has 255 bytes.
	in.ClusterDomain = strings.ToLower(strings.TrimSuffix(in.ClusterDomain, "."))
	if !domainPattern.MatchString(in.ClusterDomain) || len(in.ClusterDomain) > 57 {
		return fmt.Errorf("%w --cluster-domain: %q is not a DNS domain of at most 57 characters, such as cluster.local",
			ErrFlag, in.ClusterDomain)
	}
	for _, r := range in.Services {
		ip, wanted := r.Addr(), dnsIndex
		if r.Addr().BitLen()-r.Bits() < 4 {
			wanted = smallIndex
		}
		for range wanted {
			ip = ip.Next()
		}
		in.DNSService = append(in.DNSService, ip)
	}
	if in.ClusterDNS != "" {
		for s := range strings.SplitSeq(in.ClusterDNS, ",") {
			ip, err := netip.ParseAddr(strings.TrimSpace(s))
			if err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() {
				return fmt.Errorf("%w --cluster-dns: %q is not an IP address", ErrFlag, s)
			}
			in.NameServers = append(in.NameServers, ip)
		}
		// The Service has the addresses that pods query. It has no others if only its first one is set.
		var own []netip.Addr
		for _, r := range in.Services {
			if i := slices.IndexFunc(in.NameServers, r.Contains); i >= 0 {
				own = append(own, in.NameServers[i])
			}
		}
		if len(own) > 0 && in.Services[0].Contains(own[0]) {
			in.DNSService = own
		}
	} else {
		in.NameServers = in.reachedByPods(in.DNSService)
	}
	for _, p := range in.PodRanges() {
		in.DNSListen = append(in.DNSListen, in.BridgeAddress(p.Addr().Is6()))
	}
	if in.CNIConfDir != "" || in.RuntimeEndpoint != "" {
		// If carob does not create the pod network, its pods may have any address of in.Pods.
		// 198.18.0.0/15 is for tests of network devices (RFC 2544) and is not routed.
		in.DNSDevice = "carob-dns"
		if in.ID != "carob" {
			in.DNSDevice = "cd-" + strings.TrimPrefix(in.ID, "carob-")
		}
		low := n % (1<<17 - 256)
		in.DNSListen = []netip.Addr{
			netip.AddrFrom4([4]byte{198, 18 + byte((low+10)>>16), byte((low + 10) >> 8), byte(low + 10)})}
	}
	return nil
}
