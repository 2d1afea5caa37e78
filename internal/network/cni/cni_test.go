package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"carob/internal/base/errkind"
	"carob/internal/base/testwait"
	"carob/internal/network"
	"carob/internal/network/nettest"
)

var subnet atomic.Int32

// plugins is where Debian's containernetworking-plugins installs its programs.
const plugins = "/usr/lib/cni"

// configure writes the configuration of a network with its own bridge.
func configure(t testing.TB) Config {
	t.Helper()
	if _, err := os.Stat(filepath.Join(plugins, "bridge")); err != nil {
		t.Skip("no CNI plugins here (apt-get install containernetworking-plugins)")
	}
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	dir, n := t.TempDir(), subnet.Add(1)
	name := fmt.Sprintf("cni%d", os.Getpid()%100000*10+int(n))
	cfg := Config{ConfDir: filepath.Join(dir, "net.d"), BinDirs: []string{plugins},
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")}
	if err := os.Mkdir(cfg.ConfDir, 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [
  {"type": "bridge", "bridge": %q, "isGateway": true,
   "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "198.18.%d.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`,
		name, name, filepath.Join(dir, "ipam"), 128+(os.Getpid()*7+int(n))%128)
	if err := os.WriteFile(filepath.Join(cfg.ConfDir, "10-test.conflist"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(name); err == nil {
			_ = netlink.LinkDel(link)
		}
	})
	return cfg
}

func open(t testing.TB, cfg Config) *Network {
	t.Helper()
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestContract(t *testing.T) {
	nettest.Run(t, func(t testing.TB) nettest.Harness {
		cfg := configure(t)
		return nettest.Harness{Network: open(t, cfg),
			Reopen: func(t testing.TB) network.PodNetwork { return open(t, cfg) }}
	})
}

func TestNotReady(t *testing.T) {
	cfg := configure(t)
	cfg.BinDirs = []string{t.TempDir()}
	if err := open(t, cfg).Ready(t.Context()); !errkind.Is(err, errkind.Unavailable) {
		t.Errorf("without plugins: %v", err)
	}
	cfg.ConfDir = t.TempDir()
	n := open(t, cfg)
	if err := n.Ready(t.Context()); !errkind.Is(err, errkind.Unavailable) ||
		!strings.Contains(err.Error(), cfg.ConfDir) {
		t.Errorf("without a configuration: %v", err)
	}
	if _, err := n.Attach(t.Context(), network.Pod{SandboxID: "s"}); !errkind.Is(err, errkind.Unavailable) {
		t.Errorf("attach without a configuration: %v", err)
	}
}

// The older form of a configuration, a file with one plugin, is read like a list of one.
func TestSinglePlugin(t *testing.T) {
	cfg := Config{ConfDir: t.TempDir()}
	text := `{"cniVersion": "0.4.0", "name": "alone", "type": "bridge", "bridge": "b0"}`
	if err := os.WriteFile(filepath.Join(cfg.ConfDir, "10-alone.conf"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := (&Network{cfg: cfg}).load()
	if err != nil {
		t.Fatal(err)
	}
	if list.Name != "alone" || list.CNIVersion != "0.4.0" || len(list.Plugins) != 1 ||
		list.Plugins[0].Network.Type != "bridge" || string(list.Plugins[0].Bytes) == "" {
		t.Errorf("read as %+v", list)
	}
	if err := os.WriteFile(filepath.Join(cfg.ConfDir, "00-bad.conf"), []byte(`{"name": "bad"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Network{cfg: cfg}).load(); !errkind.Is(err, errkind.Invalid) ||
		!strings.Contains(err.Error(), "00-bad.conf") {
		t.Errorf("without a type: %v", err)
	}
}

// A plugin that fails leaves no namespace and no record.
func TestFailedAdd(t *testing.T) {
	cfg := configure(t)
	n := open(t, cfg)
	bad := strings.Replace(string(mustRead(t, filepath.Join(cfg.ConfDir, "10-test.conflist"))), `"type": "bridge"`,
		`"type": "no-such-plugin"`, 1)
	if err := os.WriteFile(filepath.Join(cfg.ConfDir, "00-bad.conflist"), []byte(bad), 0o644); err != nil {
		t.Fatal(err)
	}
	pod := network.Pod{UID: "u", Namespace: "default", Name: "web", SandboxID: "s1"}
	if _, err := n.Attach(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "default/web") {
		t.Fatalf("got %v", err)
	}
	if err := os.Remove(filepath.Join(cfg.ConfDir, "00-bad.conflist")); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Attach(t.Context(), pod); err != nil {
		t.Errorf("once the configuration is right: %v", err)
	}
	if err := n.Sweep(t.Context(), nil); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{n.nsDir, n.states} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// After a start, the plugins get the valid attachments, and free the others. No pod is attached meanwhile.
func TestCollect(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{ConfDir: dir, BinDirs: []string{dir}, StateDir: filepath.Join(dir, "state"),
		RunDir: filepath.Join(dir, "run")}
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("10.conflist", `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"recorder"}]}`, 0o600)
	write("recorder", `#!/bin/sh
input=$(cat)
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' ;;
ADD) echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],
"ips":[{"address":"198.18.200.7/24","interface":0}]}' ;;
GC) echo "$input" >`+dir+`/collected ;;
esac
`, 0o700)
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"live", "dead"} {
		if _, err := n.Attach(t.Context(), network.Pod{UID: id, SandboxID: id}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = n.Detach(context.Background(), "live") })
	if err := n.Sweep(t.Context(), map[string]bool{"live": true}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "collected"))
	if err != nil {
		t.Fatal(err)
	}
	want := `"cni.dev/valid-attachments":[{"containerID":"live","ifname":"eth0"}]`
	if !strings.Contains(string(text), want) {
		t.Errorf("%s lacks %s", text, want)
	}
	if err := os.Remove(filepath.Join(dir, "10.conflist")); err != nil {
		t.Fatal(err)
	}
	if err := n.Sweep(t.Context(), map[string]bool{"live": true}); err != nil {
		t.Errorf("without a configuration: %v", err)
	}
	write("10.conflist", `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"recorder"}]}`, 0o600) // for the end
}

// Plugins that hang while the start frees what is left of sandboxes, or while they collect garbage, delay the first pod
// for a while only. What could not be freed is freed later.
func TestSweepOfPluginsThatHang(t *testing.T) {
	for _, hangs := range []string{"DEL", "GC"} {
		t.Run(hangs, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, text string, mode os.FileMode) {
				t.Helper()
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
					t.Fatal(err)
				}
			}
			write("10.conflist", `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"hanging"}]}`, 0o600)
			write("hanging", `#!/bin/sh
cat >/dev/null
[ ! -e `+dir+`/$CNI_COMMAND ] || exec sleep 1000
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' ;;
ADD) echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],
"ips":[{"address":"198.18.200.7/24","interface":0}]}' ;;
esac
`, 0o700)
			cfg := Config{ConfDir: dir, BinDirs: []string{dir}, StateDir: filepath.Join(dir, "state"),
				RunDir: filepath.Join(dir, "run")}
			n, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			n.cni = newCNI(cfg, &programs{timeout: time.Hour})
			n.sweepTime = time.Second
			dead := []string{"a", "b", "c"}
			for _, id := range dead {
				if _, err := n.Attach(t.Context(), network.Pod{UID: id, SandboxID: id}); err != nil {
					t.Fatal(err)
				}
			}
			write(hangs, "", 0o600)
			swept := make(chan error, 1)
			go func() { swept <- n.Sweep(t.Context(), nil) }()
			select {
			case err := <-swept:
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("sweep: %v", err)
				}
			case <-time.After(testwait.Limit):
				t.Fatal("the sweep waits for plugins that hang")
			}
			if _, err := n.Attach(t.Context(), network.Pod{UID: "new", SandboxID: "new"}); err != nil {
				t.Error(err)
			}
			if err := os.Remove(filepath.Join(dir, hangs)); err != nil {
				t.Fatal(err)
			}
			for _, id := range append(dead, "new") {
				if err := n.Detach(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
			if left, err := os.ReadDir(n.states); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}
