package bridge

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"carob/internal/base/netns"
)

// Two pods with addresses of both families keep reaching each other, by way of the host. Its redirects
// would lead them to a shorter way, which the bridge does not let through: they do not listen to them.
func TestDualStackTraffic(t *testing.T) {
	cfg := testConfig(t)
	cfg.Pods6 = netip.MustParsePrefix("fd00:212:1::/64")
	n := open(t, cfg)
	client, err := n.Attach(t.Context(), podOf("client"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := n.Attach(t.Context(), podOf("server"))
	if err != nil {
		t.Fatal(err)
	}
	if len(server.IPs) != 2 || !server.IPs[0].Is4() || !server.IPs[1].Is6() {
		t.Fatalf("addresses %v", server.IPs)
	}
	if err := netns.Do(client.NetNS, func() error {
		for _, family := range []string{"ipv4", "ipv6"} {
			got, err := os.ReadFile("/proc/sys/net/" + family + "/conf/eth0/accept_redirects")
			if err != nil {
				return err
			}
			if strings.TrimSpace(string(got)) != "0" {
				t.Errorf("pods listen to redirects of %s", family)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, ip := range server.IPs {
		var l net.Listener
		if err := netns.Do(server.NetNS, func() (err error) {
			l, err = net.Listen("tcp", netip.AddrPortFrom(ip, 8080).String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for i := range 5 {
			var c net.Conn
			if err := netns.Do(client.NetNS, func() (err error) {
				c, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
				return err
			}); err != nil {
				t.Fatalf("connection %d to %s: %v", i, ip, err)
			}
			_ = c.Close()
		}
	}
}
