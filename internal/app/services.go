package app

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/instance"
	"carob/internal/core/netplan/addresspool"
	"carob/internal/network/services"
)

// proxyTable is the nftables table of the service data plane.
func proxyTable(in instance.Instance) string { return in.NFTable + "-proxy" }

// ownPorts are where this carob listens, or will: the gateway opens its ports with the first object that needs them.
// Those of Gateways come later (gatewayListens).
func ownPorts(in instance.Instance) (tcp, udp []netip.AddrPort) {
	tcp = slices.DeleteFunc([]netip.AddrPort{in.ListenAddr, in.AgentListen, in.Gateway, in.Routes.HTTP, in.Routes.HTTPS,
		in.Routes.Picker}, func(at netip.AddrPort) bool { return !at.IsValid() })
	if in.DNS != "none" {
		for _, addr := range in.DNSListen {
			udp = append(udp, netip.AddrPortFrom(addr, 53))
		}
	}
	return append(tcp, udp...), udp
}

// startServices starts the data plane of Services, unless the settings choose another one: then the rules
// of an earlier start are removed.
func (c *carob) startServices(ctx context.Context) error {
	if c.in.ServiceProxy == "none" {
		return services.Remove(proxyTable(c.in))
	}
	client, err := kubernetes.NewForConfig(c.server.ClientConfig(user.KubeProxy))
	if err != nil {
		return err
	}
	status,
		err := kubernetes.NewForConfig(c.server.ClientConfig("system:serviceaccount:kube-system:service-controller"))
	if err != nil {
		return err
	}
	var healthz net.Listener
	if at := c.in.ServiceProxyHealthz; at != "" {
		if healthz, err = listen("the service proxy's health", "--service-proxy-healthz-bind-address", at); err != nil {
			return err
		}
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	own, ownUDP := ownPorts(c.in)
	if healthz != nil {
		own = append(own, netip.MustParseAddrPort(c.in.ServiceProxyHealthz))
	}
	c.services = services.New(services.Config{
		Client: client, Status: status,
		Events: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kube-proxy",
			Host: c.in.NodeName}),
		Table: proxyTable(c.in), IPv6: hasIPv6(c.in.Services), Node: c.in.NodeName, Addresses: c.machine.hostIPs,
		Pods: c.in.PodRanges(), Own: own, OwnUDP: ownUDP, Healthz: healthz, Pool: c.pool,
		Links: c.in.LoadBalancerLinks,
	})
	c.parts.start(ctx, "services", func(ctx context.Context) error {
		events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
		defer events.Shutdown()
		return c.services.Run(ctx)
	})
	return nil
}

// balancerPool reads the addresses for load balancers; nil: there are none. Addresses of pods and cluster IPs are
// refused.
func balancerPool(in instance.Instance) (*addresspool.Pool, error) {
	if in.LoadBalancerPool == "" {
		return nil, nil
	}
	if in.ServiceProxy == "none" {
		return nil, fmt.Errorf("%w --load-balancer-pool: it is for the built-in service proxy, not for --service-proxy none",
			instance.ErrFlag)
	}
	p, err := addresspool.Parse(in.LoadBalancerPool)
	if err != nil {
		return nil, fmt.Errorf("%w --load-balancer-pool: %w", instance.ErrFlag, err)
	}
	for flag, ranges := range map[string][]netip.Prefix{"--pod-cidr": in.PodRanges(), "--service-cidr": in.Services} {
		for _, r := range ranges {
			if p.Overlaps(r) {
				return nil, fmt.Errorf("%w --load-balancer-pool: %s and %s %s overlap", instance.ErrFlag,
					in.LoadBalancerPool, flag, r)
			}
		}
	}
	return &p, nil
}

func hasIPv6(ranges []netip.Prefix) bool {
	for _, p := range ranges {
		if p.Addr().Is6() {
			return true
		}
	}
	return false
}
