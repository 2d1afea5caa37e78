package csi

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/node/plugins"
	"carob/test/csidriver"
)

func TestRegistration(t *testing.T) {
	w := newWorld(t, csidriver.Config{Limit: 7})
	n, err := w.client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || len(n.Spec.Drivers) != 1 {
		t.Fatalf("%v, %v", n, err)
	}
	d := n.Spec.Drivers[0]
	if d.Name != driverOfTests || d.NodeID != "n1" || *d.Allocatable.Count != 7 ||
		!slices.Equal(d.TopologyKeys, []string{csidriver.TopologyKey}) ||
		n.OwnerReferences[0].UID != "node-uid" || n.Annotations[migratedKey] != migrated {
		t.Fatalf("CSINode %+v", n)
	}
	node, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || node.Annotations[nodeIDs] != `{"test.carob.dev":"n1"}` ||
		node.Labels[csidriver.TopologyKey] != "n1" {
		t.Fatalf("node %+v, %v", node.ObjectMeta, err)
	}
	// A second one of the same name and version is refused, and changes nothing.
	second := plugins.Plugin{Name: driverOfTests, Endpoint: w.driver.Socket(), Versions: []string{"1.0.0"}}
	if _, err := w.Register(t.Context(), second); err == nil || !strings.Contains(err.Error(), "already registered") {
		t.Fatalf("a second driver: %v", err)
	}
	for _, p := range []plugins.Plugin{{Name: "../x", Endpoint: w.driver.Socket(), Versions: []string{"1.0.0"}},
		{Name: "volumeDevices", Endpoint: w.driver.Socket(), Versions: []string{"1.0.0"}},
		{Name: "old", Endpoint: w.driver.Socket(), Versions: []string{"0.3.0"}},
		{Name: "none", Endpoint: w.driver.Socket()}} {
		if _, err := w.Register(t.Context(), p); err == nil {
			t.Errorf("registered %+v", p)
		}
	}
	// An end of the agent changes nothing in the API; an end of the driver does.
	w.kill()
	if n, err := w.client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil ||
		len(n.Spec.Drivers) != 1 {
		t.Fatalf("after a restart: %v, %v", n, err)
	}
	w.driver.Stop()
	w.until("the driver is gone from the API", func() bool {
		n, err := w.client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || len(n.Spec.Drivers) > 0 {
			return false
		}
		node, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		_, annotated := node.Annotations[nodeIDs]
		return err == nil && !annotated && node.Labels[csidriver.TopologyKey] == "n1"
	})
}

// A driver that does not get the result of its registration, because it answers too late, can register again.
func TestRegistrationWhoseResultIsLost(t *testing.T) {
	w := newWorld(t, csidriver.Config{})
	p := plugins.Plugin{Name: "late.carob.dev", Endpoint: w.driver.Socket(), Versions: []string{"1.0.0"}}
	for i := range 2 {
		undo, err := w.Register(t.Context(), p)
		if err != nil {
			t.Fatalf("registration %d: %v", i, err)
		}
		undo() // as the plugin watcher does; neither the agent nor the plugin has ended
		if d, err := w.Manager.registered(p.Name); err == nil {
			t.Errorf("registration %d: %v is still used", i, d.name)
		}
		if got := w.installed(); !slices.Equal(got, []string{driverOfTests}) {
			t.Errorf("registration %d: CSINode has %q", i, got)
		}
	}
}

// A newer driver that registers beside the one in use, and does not answer, or goes away, does not take its name.
func TestNewerDriver(t *testing.T) {
	w := newWorld(t, csidriver.Config{})
	old, err := w.Manager.registered(driverOfTests)
	if err != nil {
		t.Fatal(err)
	}
	inUse := func(when string, want bool) {
		t.Helper()
		d, err := w.Manager.registered(driverOfTests)
		if err != nil || (d == old) != want {
			t.Errorf("%s: the driver in use is the old one: %t, %v", when, d == old, err)
		}
		if got := w.installed(); !slices.Equal(got, []string{driverOfTests}) {
			t.Errorf("%s: CSINode has %q", when, got)
		}
	}
	p := plugins.Plugin{Name: driverOfTests, Endpoint: filepath.Join(w.root, "none.sock"), Versions: []string{"1.1.0"}}
	if _, err := w.Register(t.Context(), p); err == nil {
		t.Fatal("a driver without a socket is registered")
	}
	inUse("after one that did not answer", true)
	p.Endpoint = w.driver.Socket()
	ctx, gone := context.WithCancelCause(t.Context())
	undo, err := w.Register(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	inUse("beside a newer one", false)
	gone(plugins.ErrGone)
	undo()
	inUse("after the newer one", true)
}

// A driver that was killed, and comes back with another socket, is registered although the end of the first is not
// noticed; one beside it is refused. The end of the first comes late, and changes nothing.
func TestDriverWithAnotherSocket(t *testing.T) {
	w := newWorld(t, csidriver.Config{})
	first := filepath.Join(w.root, "first.sock")
	if err := os.Link(w.driver.Socket(), first); err != nil {
		t.Fatal(err)
	}
	p := plugins.Plugin{Name: "moves.carob.dev", Endpoint: first, Versions: []string{"1.0.0"}}
	ctx, gone := context.WithCancelCause(t.Context())
	undo, err := w.Register(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	p.Endpoint = w.driver.Socket()
	if _, err := w.Register(t.Context(), p); err == nil || !strings.Contains(err.Error(), "already registered") {
		t.Fatalf("one beside it: %v", err)
	}
	stale := filepath.Join(w.root, "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as kill -9 leaves it
	if err := errors.Join(l.Close(), os.Rename(stale, first)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Register(t.Context(), p); err != nil {
		t.Fatalf("at another socket: %v", err)
	}
	gone(plugins.ErrGone)
	undo()
	d, err := w.Manager.registered(p.Name)
	if err != nil || d.endpoint != p.Endpoint || !slices.Contains(w.installed(), p.Name) {
		t.Errorf("after the end of the first: %+v, %v, CSINode has %q", d, err, w.installed())
	}
}
