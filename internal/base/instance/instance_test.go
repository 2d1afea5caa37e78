package instance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestDeriveSeparatesDataDirs(t *testing.T) {
	def, err := Derive(Flags{}, "Host")
	if err != nil {
		t.Fatal(err)
	}
	if def.ID != "carob" || def.ListenAddr.Port() != 6443 || def.NodeName != "host" ||
		def.PodLogDir != "/var/log/pods" {
		t.Errorf("default instance: %+v", def)
	}
	a, err := Derive(Flags{DataDir: "/tmp/a"}, "h")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Derive(Flags{DataDir: "/tmp/b"}, "h")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct{ what, x, y, z string }{
		{"id", def.ID, a.ID, b.ID},
		{"bridge", def.BridgeName, a.BridgeName, b.BridgeName},
		{"table", def.NFTable, a.NFTable, b.NFTable},
		{"cgroup", def.CgroupRoot, a.CgroupRoot, b.CgroupRoot},
		{"run dir", def.RunDir, a.RunDir, b.RunDir},
		{"listen", def.ListenAddr.String(), a.ListenAddr.String(), b.ListenAddr.String()},
		{"agent", def.AgentListen.String(), a.AgentListen.String(), b.AgentListen.String()},
		{"pods", def.PodCIDR, a.PodCIDR, b.PodCIDR},
	} {
		if p.x == p.y || p.y == p.z || p.x == p.z {
			t.Errorf("%s is shared: %q %q %q", p.what, p.x, p.y, p.z)
		}
	}
	if len(a.BridgeName) > 15 {
		t.Errorf("bridge name %q is longer than the kernel allows", a.BridgeName)
	}
}

func TestDeriveNamesTheWrongFlag(t *testing.T) {
	for name, f := range map[string]Flags{
		"--listen":                    {Listen: "nowhere"},
		"--pod-cidr":                  {PodCIDR: "10.0.0.0"},
		`"10.88.0.0/16,10.89.0.0/16"`: {PodCIDR: "10.88.0.0/16,10.89.0.0/16"},
		`"fd00:88::/64,fd00:99::/64"`: {PodCIDR: "fd00:88::/64,fd00:99::/64"},
		"::ffff:10.88.0.0/112":        {PodCIDR: "::ffff:10.88.0.0/112"},
		",fd00:88::/64,fd00:89::/64":  {PodCIDR: "10.88.0.0/16,fd00:88::/64,fd00:89::/64"},
		"fd00:88::/121":               {PodCIDR: "10.88.0.0/16,fd00:88::/121"},
		"10.88.0.0/31":                {PodCIDR: "10.88.0.0/31"},
		"fd00:88::/112 overlap":       {PodCIDR: "10.88.0.0/16,fd00:88::/64", ServiceCIDR: "10.96.0.0/16,fd00:88::/112"},
		"--pod-mtu: 67":               {PodMTU: 67},
		"--pod-mtu: 1279":             {PodMTU: 1279, PodCIDR: "fd00:88::/64"},
		"--service-cidr":              {ServiceCIDR: "x"},
		"10.0.0.0/30":                 {ServiceCIDR: "10.0.0.0/30"},
		"one of IPv6":                 {ServiceCIDR: "10.96.0.0/16,10.97.0.0/16"},
		"overlap":                     {ServiceCIDR: "10.96.0.0/16,fd00::/112", PodCIDR: "fd00::/64"},

		"--service-node-port-range": {ServiceNodePorts: "30000"},
		"40000-30000":               {ServiceNodePorts: "40000-30000"},
		"65000+1000":                {ServiceNodePorts: "65000+1000"},

		"--node-name":       {NodeName: "A_b"},
		"--etcd-certfile":   {EtcdCert: "c.crt"},
		"--etcd-servers":    {EtcdServers: []string{"10.0.0.1:2379"}},
		"--cni-conf-dir":    {CNIConfDir: "/does/not/exist"},
		"--registry-config": {RegistryConfig: "/does/not/exist"},
		"--max-pods":        {MaxPods: -1},
		"--pod-max-pids":    {Hardening: Hardening{PodPids: -2}},

		"--pod-manifest-dir":   {PodManifestDir: "/does/not/exist"},
		"--local-storage-path": {LocalStoragePath: "/a,relative"},
		"--runtime-endpoint":   {RuntimeEndpoint: "containerd"},
		"--log-level":          {LogLevel: "loud"},
		"--listen:":            {Listen: "127.0.0.1:0"},

		"--deletion-drain-timeout:":              {DrainTimeout: -1},
		"--shutdown-grace-period:":               {Pressure: Pressure{ShutdownGrace: -1}},
		"--shutdown-grace-period-critical-pods:": {Pressure: Pressure{ShutdownCritical: -1}},
		"--minimum-image-ttl-duration:":          {Pressure: Pressure{ImageMinAge: -1}},
		"--audit-log-maxage:":                    {Audit: Audit{MaxAgeDays: -1}},
		"--audit-log-path:":                      {Audit: Audit{LogPath: "-"}},
		"--audit-webhook-config-file:":           {Audit: Audit{WebhookConfig: "/dev/null"}},
		"--audit-policy-file: requires":          {Audit: Audit{PolicyFile: "/dev/null"}},
	} {
		_, err := Derive(f, "h")
		if !errors.Is(err, ErrFlag) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		} else if strings.Contains(err.Error(), "netip.") || strings.Contains(err.Error(), "stat ") {
			t.Errorf("%s: %v has Go's wording", name, err)
		}
	}
	if _, err := Derive(Flags{PodCIDR: "10.0.0.0/8", ServiceCIDR: "10.96.0.0/16"}, "h"); !errors.Is(err, ErrFlag) {
		t.Errorf("overlapping ranges: got %v", err)
	}
}

func TestServiceRanges(t *testing.T) {
	in, err := Derive(Flags{ServiceCIDR: "fd00:96::/112, 10.96.0.0/16", ServiceNodePorts: "31000+10"}, "h")
	if err != nil || len(in.Services) != 2 || in.Services[0].String() != "fd00:96::/112" ||
		in.NodePorts != [2]int{31000, 31009} {
		t.Errorf("%v %v, %v", in.Services, in.NodePorts, err)
	}
	if in, err = Derive(Flags{}, "h"); err != nil || in.NodePorts != [2]int{30000, 32767} {
		t.Errorf("by default: %v, %v", in.NodePorts, err)
	}
}

// The order of the pods' ranges is that of their addresses. Services have ranges of the same families unless the flag
// is set, and DNS serves all of them.
func TestFamilies(t *testing.T) {
	for _, c := range []struct{ pods, services, wantServices, listen, gateway, dns string }{
		{"", "", "10.96.0.0/16", "10.88.0.1", "10.88.0.1:6443", "10.96.0.10"},
		{"fd00:88::/64", "", "fd00:96::/112", "fd00:88::1", "[fd00:88::1]:6443", "fd00:96::a"},
		{"fd00:88::/64,10.88.0.0/16", "", "fd00:96::/112 10.96.0.0/16", "fd00:88::1 10.88.0.1", "[fd00:88::1]:6443",
			"fd00:96::a 10.96.0.10"},
		{"10.88.0.0/16,fd00:88::/64", "10.96.0.0/16,fd00:96::/112", "10.96.0.0/16 fd00:96::/112", "10.88.0.1 fd00:88::1",
			"10.88.0.1:6443", "10.96.0.10 fd00:96::a"},
		{"10.88.0.0/16,fd00:88::/64", "", "10.96.0.0/16 fd00:96::/112", "10.88.0.1 fd00:88::1", "10.88.0.1:6443",
			"10.96.0.10 fd00:96::a"},
		{"10.88.0.0/16,fd00:88::/64", "fd00:96::/112", "fd00:96::/112", "10.88.0.1 fd00:88::1", "[fd00:88::1]:6443",
			"fd00:96::a"},
		{"10.88.0.0/16", "10.96.0.0/16,fd00:96::/112", "10.96.0.0/16 fd00:96::/112", "10.88.0.1", "10.88.0.1:6443",
			"10.96.0.10"},
	} {
		in, err := Derive(Flags{PodCIDR: c.pods, ServiceCIDR: c.services}, "h")
		if err != nil {
			t.Errorf("%s: %v", c.pods, err)
			continue
		}
		if c.pods != "" && words(in.PodRanges()) != strings.ReplaceAll(c.pods, ",", " ") {
			t.Errorf("%s: the ranges are %v", c.pods, in.PodRanges())
		}
		for what, got := range map[string][2]string{"services": {words(in.Services), c.wantServices},
			"listens at": {words(in.DNSListen), c.listen}, "gateway": {in.Gateway.String(), c.gateway},
			"name servers": {words(in.NameServers), c.dns}} {
			if got[0] != got[1] {
				t.Errorf("--pod-cidr %s --service-cidr %s: %s %s, want %s", c.pods, c.services, what, got[0], got[1])
			}
		}
	}
}

func words[T fmt.Stringer](list []T) string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return strings.Join(out, " ")
}

// A range that is derived from the data directory does not overlap one that is set.
func TestDerivedRangesDoNotOverlapFlags(t *testing.T) {
	for i := range 2000 {
		dir := fmt.Sprintf("/tmp/%d", i)
		for _, f := range []Flags{{DataDir: dir, PodCIDR: "10.242.0.0/16"},
			{DataDir: dir, ServiceCIDR: "10.142.0.0/16"}, {PodCIDR: "10.96.128.0/20"}} {
			in, err := Derive(f, "h")
			if err != nil {
				t.Fatalf("%+v: %v", f, err)
			}
			if again, err := Derive(f, "h"); err != nil || again.PodCIDR != in.PodCIDR ||
				again.ServiceCIDR != in.ServiceCIDR {
				t.Fatalf("%+v: another time %s, %s, %v", f, again.PodCIDR, again.ServiceCIDR, err)
			}
		}
	}
}

func TestLockHasOneOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d", "carob.lock")
	if _, ok, err := Running(path); ok || err != nil {
		t.Fatalf("before: %v %v", ok, err)
	}
	l, err := Acquire(path, Owner{PID: 42, URL: "https://x"})
	if err != nil {
		t.Fatal(err)
	}
	var held *HeldError
	if _, err := Acquire(path, Owner{PID: 43}); !errors.As(err, &held) || held.Owner.PID != 42 {
		t.Fatalf("second owner: %v", err)
	}
	if o, ok, err := Running(path); !ok || err != nil || o.PID != 42 {
		t.Fatalf("running: %+v %v %v", o, ok, err)
	}
	l.Release()
	if _, ok, _ := Running(path); ok {
		t.Fatal("still running after release")
	}
}

// A lock without an address is that of a command, such as "carob down --pods", not of a cluster to stop.
func TestHeldByACommand(t *testing.T) {
	for url, want := range map[string]string{"": "another command of carob works on /d (pid 7)",
		"https://x": "carob is already running on /d (pid 7, https://x)"} {
		if err := (&HeldError{"/d", Owner{PID: 7, URL: url}}).Error(); !strings.HasPrefix(err, want) {
			t.Errorf("%q: %s, want %s…", url, err, want)
		}
	}
}

// TestAcquireDuringChecksOfTheLock: checking whether a carob runs must not keep another from starting.
func TestAcquireDuringChecksOfTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carob.lock")
	ctx, stop := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	defer looking.Wait()
	defer stop()
	for range 4 {
		looking.Go(func() {
			for ctx.Err() == nil {
				if _, _, err := Running(path); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5000 {
		l, err := Acquire(path, Owner{PID: 42})
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
	}
}

// The agent listens where the API server does, and on the loopback address if the API server is not
// reachable from outside.
func TestAgentListen(t *testing.T) {
	for listen, want := range map[string]string{
		"": "127.0.0.1:10250", "localhost:7000": "127.0.0.1:10250", "[::1]:7000": "127.0.0.1:10250",
		"127.0.0.5:7000": "127.0.0.1:10250",
		"0.0.0.0:6443":   "0.0.0.0:10250", ":6443": "0.0.0.0:10250", "[::]:6443": "[::]:10250",
		"192.0.2.7:6443": "192.0.2.7:10250",
	} {
		in, err := Derive(Flags{Listen: listen}, "h")
		if err != nil || in.AgentListen.String() != want {
			t.Errorf("--listen %q: %v, %v, want %s", listen, in.AgentListen, err, want)
		}
	}
}
