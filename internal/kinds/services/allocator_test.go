package services

import (
	"context"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"carob/internal/base/errkind"
)

// fakeStore is an addressStore without a server.
type fakeStore struct {
	ranged []netip.Prefix
	held   map[netip.Addr]string // name of its user
}

func newFakeStore(prefixes ...string) *fakeStore {
	m := &fakeStore{held: map[netip.Addr]string{}}
	for _, p := range prefixes {
		m.ranged = append(m.ranged, netip.MustParsePrefix(p))
	}
	return m
}

func (m *fakeStore) ranges(_ context.Context, family corev1.IPFamily) ([]addresses, error) {
	var out []addresses
	for _, p := range m.ranged {
		if familyOf(p.Addr()) == family {
			out = append(out, rangeOf(p))
		}
	}
	return out, nil
}

func (m *fakeStore) claim(_ context.Context, ip netip.Addr, s *corev1.Service, dry bool) error {
	if _, taken := m.held[ip]; taken {
		return errAllocated
	}
	if !dry {
		m.held[ip] = s.Name
	}
	return nil
}

func (m *fakeStore) free(_ context.Context, ip netip.Addr, s *corev1.Service) error {
	if m.held[ip] == s.Name {
		delete(m.held, ip)
	}
	return nil
}

func (m *fakeStore) used(context.Context) (map[netip.Addr]bool, error) {
	out := map[netip.Addr]bool{}
	for ip := range m.held {
		out[ip] = true
	}
	return out, nil
}

func allocator(t interface{ Fatal(...any) }, m *fakeStore) *Allocator {
	a, err := NewAllocator([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}, 30000, 30010)
	if err != nil {
		t.Fatal(err)
	}
	a.bind(m)
	return a
}

// After any sequence of allocations and releases, no address is allocated twice, none is outside of
// the ranges, and the ranges are only full when every address is used.
func TestAddressesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newFakeStore()
		size := uint64(0)
		for i := range rapid.IntRange(1, 3).Draw(t, "ranges") {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), rapid.IntRange(24, 32).Draw(t, "bits"))
			m.ranged = append(m.ranged, p)
			size += rangeOf(p).size
		}
		a := allocator(t, m)
		s, mine := &corev1.Service{}, map[netip.Addr]bool{}
		pick := func(t *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 1, byte(rapid.IntRange(0, 3).Draw(t, "third")),
				byte(rapid.IntRange(0, 255).Draw(t, "fourth"))})
		}
		usable := func(ip netip.Addr) bool {
			for _, p := range m.ranged {
				if last := rangeOf(p); p.Contains(ip) && ip != p.Addr() && ip != last.at(last.size) {
					return true
				}
			}
			return false
		}
		t.Repeat(map[string]func(*rapid.T){
			"next": func(t *rapid.T) {
				ip, err := a.next(t.Context(), corev1.IPv4Protocol, s, false)
				switch {
				case err != nil && uint64(len(mine)) != size:
					t.Fatalf("full with %d of %d: %v", len(mine), size, err)
				case err == nil && (mine[ip] || !usable(ip)):
					t.Fatalf("gave %v", ip)
				case err == nil:
					mine[ip] = true
				}
			},
			"take": func(t *rapid.T) {
				ip := pick(t)
				if err := a.take(t.Context(), ip, s, false); (err == nil) != (usable(ip) && !mine[ip]) {
					t.Fatalf("take of %v (usable: %v, held: %v): %v", ip, usable(ip), mine[ip], err)
				} else if err == nil {
					mine[ip] = true
				}
			},
			"dry": func(t *rapid.T) {
				before := len(m.held)
				_, _ = a.next(t.Context(), corev1.IPv4Protocol, s, true)
				if len(m.held) != before {
					t.Fatal("a dry run took an address")
				}
			},
			"give back": func(t *rapid.T) {
				ip := pick(t)
				a.giveBack(t.Context(), ip, s)
				delete(mine, ip)
			},
		})
	})
}

func TestAddressesLimits(t *testing.T) {
	a := rangeOf(netip.MustParsePrefix("10.96.0.0/16"))
	if a.first().String() != "10.96.0.1" {
		t.Errorf("first %v", a.first())
	}
	for _, ip := range []string{"10.96.0.0", "10.96.255.255", "10.97.0.1", "::1"} {
		if a.has(netip.MustParseAddr(ip)) {
			t.Errorf("%s is usable", ip)
		}
	}
	if err := checkRange(netip.MustParsePrefix("10.0.0.0/30")); !errkind.Is(err, errkind.Invalid) {
		t.Errorf("a tiny range: %v", err)
	}
	six := rangeOf(netip.MustParsePrefix("fd00::/64"))
	if six.first().String() != "fd00::1" || !six.prefix.Contains(six.any()) {
		t.Errorf("%v, %v", six.first(), six.any())
	}
}

func service(mod func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
		Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolTCP},
			{Port: 53, Protocol: corev1.ProtocolUDP}}}}
	mod(s)
	return s
}

func TestRollback(t *testing.T) {
	m := newFakeStore("10.96.0.0/24")
	a := allocator(t, m)
	s := service(func(*corev1.Service) {})
	finish, err := a.begin(t.Context(), s, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if s.Spec.Ports[0].NodePort != s.Spec.Ports[1].NodePort {
		t.Errorf("the protocols of one port have different node ports: %v", s.Spec.Ports)
	}
	finish(t.Context(), false)
	if len(m.held) != 0 || len(a.ports.used) != 0 {
		t.Errorf("a failed write keeps %v %v", m.held, a.ports.used)
	}
	// A failed request releases what it allocated before.
	bad := service(func(s *corev1.Service) { s.Spec.Ports[1].NodePort = 5 })
	if _, err := a.begin(t.Context(), bad, nil, false); err == nil {
		t.Fatal("a node port out of range")
	}
	if len(m.held) != 0 || len(a.ports.used) != 0 {
		t.Errorf("a refused service keeps %v %v", m.held, a.ports.used)
	}
	dry := service(func(*corev1.Service) {})
	if finish, err = a.begin(t.Context(), dry, nil, true); err != nil || dry.Spec.ClusterIP == "" {
		t.Fatalf("%v, %v", dry.Spec, err)
	}
	finish(t.Context(), true)
	if len(m.held) != 0 || len(a.ports.used) != 0 {
		t.Errorf("a dry run keeps %v %v", m.held, a.ports.used)
	}
}

func TestTypeChangeReleases(t *testing.T) {
	m := newFakeStore("10.96.0.0/24")
	a := allocator(t, m)
	old := service(func(*corev1.Service) {})
	finish, err := a.begin(t.Context(), old, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	finish(t.Context(), true)
	changed := old.DeepCopy()
	changed.Spec.Type = corev1.ServiceTypeClusterIP
	if finish, err = a.begin(t.Context(), changed, old, false); err != nil {
		t.Fatal(err)
	}
	dropUnused(changed, old) // as in the strategy
	finish(t.Context(), true)
	if len(a.ports.used) != 0 || changed.Spec.Ports[0].NodePort != 0 || changed.Spec.ClusterIP != old.Spec.ClusterIP {
		t.Errorf("%v, %v", a.ports.used, changed.Spec)
	}
	gone := changed.DeepCopy()
	gone.Spec.Type, gone.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	if finish, err = a.begin(t.Context(), gone, changed, false); err != nil {
		t.Fatal(err)
	}
	dropUnused(gone, changed)
	finish(t.Context(), true)
	if len(m.held) != 0 || gone.Spec.ClusterIP != "" {
		t.Errorf("%v, %v", m.held, gone.Spec)
	}
}
