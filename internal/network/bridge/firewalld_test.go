package bridge

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/nftables"

	"carob/internal/base/netns"
	testbus "carob/test/dbus"
)

// fakeFirewalld answers as firewalld 1.3 does.
type fakeFirewalld struct {
	mu    sync.Mutex
	zones map[string]string // by interface
	hang  chan struct{}     // calls wait until it is closed
	calls chan string       // the methods that were called
}

func startFirewalld(t *testing.T, address string) (f *fakeFirewalld, stop func()) {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { _ = conn.Close() })
	t.Cleanup(stop)
	f = &fakeFirewalld{zones: map[string]string{}, calls: make(chan string, 100)}
	enter := func(method string) func() {
		f.calls <- method
		f.mu.Lock()
		hang := f.hang
		f.mu.Unlock()
		if hang != nil {
			<-hang
		}
		f.mu.Lock()
		return f.mu.Unlock
	}
	fail := func(text string) *dbus.Error {
		return &dbus.Error{Name: firewalldService + ".Exception", Body: []any{text}}
	}
	if err := conn.ExportMethodTable(map[string]any{
		"getZoneOfInterface": func(name string) (string, *dbus.Error) {
			defer enter("get")()
			return f.zones[name], nil
		},
		"addInterface": func(zone, name string) (string, *dbus.Error) {
			defer enter("add " + zone + " " + name)()
			if at := f.zones[name]; at != "" {
				return "", fail("ZONE_CONFLICT: '" + name + "' already bound to '" + at + "'")
			}
			f.zones[name] = zone
			return zone, nil
		},
		"removeInterface": func(zone, name string) (string, *dbus.Error) {
			defer enter("remove " + zone + " " + name)()
			switch f.zones[name] {
			case "":
				return "", fail("UNKNOWN_INTERFACE: '" + name + "' is not in any zone")
			case zone:
				delete(f.zones, name)
				return zone, nil
			}
			return "", fail("ZONE_CONFLICT: '" + name + "' is not in '" + zone + "'")
		},
	}, firewalldPath, strings.TrimSuffix(firewalldZones, ".")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(firewalldService, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	return f, stop
}

func (f *fakeFirewalld) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// fill makes firewalld's table, as it does before it answers.
func (h *host) fill() {
	h.t.Helper()
	err := netns.Do(h.path, func() error {
		conn, err := nftables.New(nftables.WithNetNSFd(int(h.fd.Fd())))
		if err != nil {
			return err
		}
		table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "firewalld"})
		conn.AddChain(&nftables.Chain{Name: "filter_FORWARD", Table: table})
		return conn.Flush()
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) firewalld() *firewalld {
	return &firewalld{bridge: "carob0", options: []nftables.ConnOption{nftables.WithNetNSFd(int(h.fd.Fd()))},
		timeout: 30 * time.Second}
}

func mustTrust(t *testing.T, f *firewalld, wantZone string, wantAdded bool) {
	t.Helper()
	if zone, added, err := f.trust(t.Context()); err != nil || zone != wantZone || added != wantAdded {
		t.Errorf("zone %q, added %v, %v; want %q, %v", zone, added, err, wantZone, wantAdded)
	}
}

func TestFirewalld(t *testing.T) {
	h := newHost(t)
	f := h.firewalld()
	address, _ := testbus.Start(t, t.TempDir())
	mustTrust(t, f, "", false) // no firewalld: its bus name has no owner, and that is not looked up
	h.fill()
	if _, _, err := f.trust(t.Context()); !stopped(err) {
		t.Errorf("rules of a firewalld that has ended: %v", err)
	}
	fake, stop := startFirewalld(t, address)
	mustTrust(t, f, trustedZone, true)
	mustTrust(t, f, trustedZone, false)
	fake.set(func() { clear(fake.zones) }) // a reload
	mustTrust(t, f, trustedZone, true)
	for range 2 { // the second time there is nothing to remove
		if err := f.distrust(t.Context()); err != nil || len(fake.zones) != 0 {
			t.Errorf("%v, %v", err, fake.zones)
		}
	}
	fake.set(func() { fake.zones["carob0"] = "internal" })
	mustTrust(t, f, "internal", false) // the administrator's decision
	if err := f.distrust(t.Context()); err != nil || fake.zones["carob0"] != "internal" {
		t.Errorf("%v, %v", err, fake.zones)
	}

	hang := make(chan struct{})
	fake.set(func() { fake.hang = hang })
	f.timeout = time.Millisecond
	if _, _, err := f.trust(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a firewalld that hangs: %v", err)
	}
	close(hang)
	stop()
	if _, _, err := f.trust(t.Context()); err == nil {
		t.Error("no error without firewalld")
	}
}

// The keeper looks when the kernel reports changed rules, and again after a failure until firewalld answers.
func TestTrustIsKept(t *testing.T) {
	h := newHost(t)
	address, _ := testbus.Start(t, t.TempDir())
	fake, _ := startFirewalld(t, address)
	f := h.firewalld()
	k := keepTrusted(t.Context(), f)
	defer k.close()
	k.look() // never: there is no firewalld
	h.fill()
	k.look()
	wait := func(want string) {
		t.Helper()
		for {
			select {
			case got := <-fake.calls:
				if got == want {
					return
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("firewalld was not asked to %s", want)
			}
		}
	}
	wait("add trusted carob0")
	fake.set(func() { clear(fake.zones) })
	k.look()
	k.look() // twice
	wait("add trusted carob0")
}

// A closed keeper does not wait for a firewalld that hangs.
func TestTrustEnds(t *testing.T) {
	h := newHost(t)
	address, _ := testbus.Start(t, t.TempDir())
	fake, _ := startFirewalld(t, address)
	hang := make(chan struct{})
	defer close(hang)
	fake.set(func() { fake.hang = hang })
	h.fill()
	k := keepTrusted(t.Context(), h.firewalld())
	k.look()
	<-fake.calls
	k.close()
}

func TestInputIsOpenedForServices(t *testing.T) {
	h := newHost(t)
	p := h.firewall("carob-1")
	h.iptables("-P", "INPUT", "DROP")
	mustAllow(t, p, 1)
	mustAllow(t, p, 0)
	want := "-P INPUT DROP\n-A INPUT -i carob0 -m conntrack --ctstate DNAT -m comment --comment carob-1 -j ACCEPT"
	if got := strings.TrimSpace(h.iptables("-S", "INPUT")); got != want {
		t.Errorf("the chain is\n%s\nwant\n%s", got, want)
	}
	if err := p.remove(); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(h.iptables("-S", "INPUT")); got != "-P INPUT DROP" {
		t.Error(got)
	}
}
