package bridge

import (
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// foreignNS is a namespace that another runtime made.
func foreignNS(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	if err := netns.DoNew(func() error { return netns.Pin(netns.Current, path) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Unpin(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

func externalPod(name, ns string) network.Pod {
	pod := podOf(name)
	pod.NetNS, pod.External = ns, true
	return pod
}

// devices counts the network devices in a namespace.
func devices(t *testing.T, ns string) (count int) {
	t.Helper()
	if err := netns.Do(ns, func() error {
		links, err := netlink.LinkList()
		count = len(links)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return count
}

// A pod of another runtime is not dead because carob's own runtime does not know it: it is when its namespace is
// gone. Both hold for the next process, too.
func TestExternalPods(t *testing.T) {
	cfg := testConfig(t)
	n := open(t, cfg)
	ns := foreignNS(t)
	pod := externalPod("far", ns)
	before := devices(t, ns)
	first, err := n.Attach(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	again, err := n.Attach(t.Context(), pod)
	if err != nil || again.IPs[0] != first.IPs[0] {
		t.Errorf("attached again at %v, %v", again.IPs, err)
	}
	d, ok := n.Find(pod.SandboxID)
	if !ok || len(d.IPs) == 0 || d.IPs[0] != first.IPs[0] || d.Gateways[0] != n.gateways()[0] || d.MAC == "" {
		t.Errorf("found %+v, %v", d, ok)
	}
	if err := n.Sweep(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = open(t, cfg) // as after a kill
	if err := n.Sweep(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if d, ok := n.Find(pod.SandboxID); !ok || d.IPs[0] != first.IPs[0] {
		t.Errorf("after a start: %+v, %v", d, ok)
	}
	if err := n.Detach(t.Context(), pod.SandboxID); err != nil {
		t.Fatal(err)
	}
	if now := devices(t, ns); now != before {
		t.Errorf("after the end the namespace has %d devices, before %d", now, before)
	}
	if _, ok := n.Find(pod.SandboxID); ok {
		t.Error("found after its end")
	}

	// Its runtime removes the namespace without DEL.
	if _, err := n.Attach(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := netns.Unpin(ns); err != nil {
		t.Fatal(err)
	}
	if err := n.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.Find(pod.SandboxID); ok {
		t.Error("found after its namespace was removed")
	}
}

// The same sandbox in another namespace gets a device there, too.
func TestExternalPodMoves(t *testing.T) {
	n := open(t, testConfig(t))
	one, two := foreignNS(t), foreignNS(t)
	if _, err := n.Attach(t.Context(), externalPod("far", one)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Attach(t.Context(), externalPod("far", two)); err != nil {
		t.Fatal(err)
	}
	if a, b := devices(t, one), devices(t, two); b != a+1 {
		t.Errorf("the old namespace has %d devices, the new one %d", a, b)
	}
}
