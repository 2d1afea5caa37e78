package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"carob/internal/node/nodeobject"
)

// Pods get the content of the host's files and its addresses at their start: written in place,
// replaced as editors and NetworkManager do, gone for a moment, and back.
func TestFactsFollowTheHost(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	replace := func(name, text string) {
		t.Helper()
		write(name+".new", text)
		if err := os.Rename(path(name+".new"), path(name)); err != nil {
			t.Fatal(err)
		}
	}
	ips := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	var reports []string
	f := newFacts(t.Context(), &Config{HostIPs: func() []netip.Addr { return ips }, ClusterDomain: "cluster.local"},
		nodeobject.Machine{Capacity: corev1.ResourceList{}}, false,
		func(m string) { reports = append(reports, m) })
	f.resolv.name, f.behind.name, f.hosts.name, f.log = path("resolv"), path("behind"), path("hosts"), klog.Background()

	expect := func(servers, hosts string, addresses ...string) {
		t.Helper()
		n := f.node()
		if got := strings.Join(n.Resolver.Nameservers, " "); got != servers || string(n.HostsFile) != hosts ||
			!slices.Equal(n.HostIPs, addresses) {
			t.Errorf("servers %q, hosts %q, addresses %v; want %q, %q, %v", got, n.HostsFile, n.HostIPs, servers, hosts,
				addresses)
		}
		if again := f.node(); again != n {
			t.Error("nothing changed, and the node is another one")
		}
	}
	expect("", "", "192.0.2.1") // a machine without these files
	write("resolv", "nameserver 192.0.2.53\n")
	write("hosts", "127.0.0.1 localhost\n")
	expect("192.0.2.53", "127.0.0.1 localhost\n", "192.0.2.1")
	write("resolv", "nameserver 192.0.2.54\n") // of the same length, at once
	expect("192.0.2.54", "127.0.0.1 localhost\n", "192.0.2.1")
	replace("resolv", "nameserver 192.0.2.55\n")
	replace("hosts", "127.0.0.1 localhost other\n")
	expect("192.0.2.55", "127.0.0.1 localhost other\n", "192.0.2.1")
	if err := os.Remove(path("resolv")); err != nil {
		t.Fatal(err)
	}
	expect("192.0.2.55", "127.0.0.1 localhost other\n", "192.0.2.1")

	// systemd-resolved's stub is taken for what is behind it, if anything is.
	replace("resolv", "nameserver 127.0.0.53\noptions edns0\n")
	expect("127.0.0.53", "127.0.0.1 localhost other\n", "192.0.2.1")
	write("behind", "nameserver 127.0.0.1\n")
	expect("127.0.0.53", "127.0.0.1 localhost other\n", "192.0.2.1")
	replace("behind", "nameserver 198.51.100.53\nnameserver 198.51.100.54\n")
	expect("198.51.100.53 198.51.100.54", "127.0.0.1 localhost other\n", "192.0.2.1")
	replace("resolv", "nameserver 192.0.2.56\n") // no stub any more
	ips = []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")}
	expect("192.0.2.56", "127.0.0.1 localhost other\n", "198.51.100.7", "2001:db8::7")

	// A line that is too long is reported once.
	for range 2 {
		replace("resolv", "search "+strings.Repeat("a.example ", 40)+"\n")
		f.node()
	}
	want := "Resolv.conf file '" + path("resolv") + "' contains search line consisting of more than 29 domains!"
	if len(reports) != 1 || reports[0] != want {
		t.Errorf("told %q", reports)
	}
}

// The user's own file is taken as it is.
func TestGivenResolvConf(t *testing.T) {
	name := filepath.Join(t.TempDir(), "resolv")
	if err := os.WriteFile(name, []byte("nameserver 127.0.0.53\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := newFacts(t.Context(), &Config{HostIPs: func() []netip.Addr { return nil }, ResolvConf: name},
		nodeobject.Machine{Capacity: corev1.ResourceList{}}, false, func(string) {})
	if got := f.node().Resolver.Nameservers; !slices.Equal(got, []string{"127.0.0.53"}) {
		t.Errorf("servers %v", got)
	}
}

// The counters of thermal events of each CPU are found, so that containers cannot read them (L3.161).
func TestThermalEvents(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"cpu0/thermal_throttle", "cpu12/thermal_throttle", "cpu3/topology",
		"cpufreq/thermal_throttle"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(dir, "cpu0/thermal_throttle"), filepath.Join(dir, "cpu12/thermal_throttle")}
	if got := thermalEvents(dir); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	if got := thermalEvents(filepath.Join(dir, "none")); len(got) != 0 {
		t.Errorf("a machine without them: %v", got)
	}
}
