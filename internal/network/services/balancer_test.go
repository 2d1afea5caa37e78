package services

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/netns"
	"carob/internal/base/testwait"
	"carob/internal/core/netplan/addresspool"
)

// A Service gets an address of the pool, which a machine on the same Ethernet resolves and then reaches; the next
// process keeps the address; when the Service goes, another one that has waited gets it.
func TestPool(t *testing.T) {
	d := &driver{testPlane: &testPlane{lab: newLab(t)}}
	d.driverParts(t)
	p, err := addresspool.Parse("203.0.113.200-203.0.113.201")
	d.must(err)
	d.pool = &p
	d.run()
	t.Cleanup(func() { d.stop() })
	vips := []netip.Addr{netip.MustParseAddr("203.0.113.200"), netip.MustParseAddr("203.0.113.201")}
	d.must(netns.Do(d.path("outside"), func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: vips[0].AsSlice(), Mask: net.CIDRMask(31, 32)}})
	}))
	balanced := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }
	status := func(name string) string {
		s, err := d.api.CoreV1().Services("ns").Get(t.Context(), name, metav1.GetOptions{})
		d.must(err)
		if len(s.Status.LoadBalancer.Ingress) == 0 {
			return ""
		}
		return s.Status.LoadBalancer.Ingress[0].IP
	}
	until := func(vip netip.Addr, pod string) {
		t.Helper()
		testwait.For(t, vip.String()+" leads to "+pod, func() bool {
			name, _, _ := d.reach("outside", "tcp", netip.AddrPortFrom(vip, 80), silence)
			return name == pod
		})
	}
	d.store("a", d.ip(1), func(s *corev1.Service) {
		balanced(s)
		s.Spec.LoadBalancerIP = vips[1].String() //nolint:staticcheck // users have it
	}, "pod1")
	until(vips[1], "pod1")
	if event := <-d.events.Events; event != "Normal IPAllocated Assigned IP 203.0.113.201" {
		t.Errorf("event %q", event)
	}
	d.store("b", d.ip(2), balanced, "pod2")
	until(vips[0], "pod2")
	<-d.events.Events
	d.store("c", d.ip(3), balanced, "pod3")
	if event := <-d.events.Events; event !=
		`Warning AllocationFailed Failed to allocate IP for "ns/c": no available IPv4 addresses` {
		t.Errorf("event %q", event)
	}
	d.stop()
	d.run()
	d.until("it runs", func() bool { return d.proxy.running })
	until(vips[1], "pod1")
	if a, b, c := status("a"), status("b"), status("c"); a != vips[1].String() || b != vips[0].String() || c != "" {
		t.Errorf("after a restart: %q %q %q", a, b, c)
	}
	d.must(d.api.CoreV1().Services("ns").Delete(t.Context(), "b", metav1.DeleteOptions{}))
	until(vips[0], "pod3")
}
