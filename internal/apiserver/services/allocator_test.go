package services

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"carob/internal/base/errkind"
)

// Whatever is taken, given and given back: no address is handed out twice, none
// leaves the range, and the range is used up completely before it is full.
func TestAddressesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(24, 29).Draw(t, "bits")
		a, err := newAddresses(netip.PrefixFrom(netip.MustParseAddr("10.1.2.0"), bits))
		if err != nil {
			t.Fatal(err)
		}
		held := map[netip.Addr]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"next": func(t *rapid.T) {
				ip, err := a.next()
				if err != nil {
					if uint64(len(held)) != a.size || !errkind.Is(err, errkind.Exhausted) {
						t.Fatalf("full with %d of %d: %v", len(held), a.size, err)
					}
					return
				}
				if held[ip] || !a.prefix.Contains(ip) || ip == a.prefix.Addr() {
					t.Fatalf("gave %v", ip)
				}
				held[ip] = true
			},
			"take": func(t *rapid.T) {
				ip := a.at(uint64(rapid.IntRange(0, int(a.size)-1).Draw(t, "n")))
				if err := a.take(ip); (err == nil) == held[ip] {
					t.Fatalf("take of %v (held: %v): %v", ip, held[ip], err)
				}
				held[ip] = true
			},
			"release": func(t *rapid.T) {
				ip := a.at(uint64(rapid.IntRange(0, int(a.size)-1).Draw(t, "n")))
				a.release(ip)
				delete(held, ip)
			},
		})
	})
}

func TestAddressesLimits(t *testing.T) {
	a, err := newAddresses(netip.MustParsePrefix("10.96.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	if a.first().String() != "10.96.0.1" {
		t.Errorf("first %v", a.first())
	}
	for _, ip := range []string{"10.96.0.0", "10.96.255.255", "10.97.0.1", "::1"} {
		if a.take(netip.MustParseAddr(ip)) == nil {
			t.Errorf("took %s", ip)
		}
	}
	if _, err := newAddresses(netip.MustParsePrefix("10.0.0.0/30")); !errkind.Is(err, errkind.Invalid) {
		t.Errorf("a tiny range: %v", err)
	}
	six, err := newAddresses(netip.MustParsePrefix("fd00::/108"))
	if err != nil || six.first().String() != "fd00::1" {
		t.Errorf("%v, %v", six.first(), err)
	}
}

func service(mod func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolTCP}, {Port: 53, Protocol: corev1.ProtocolUDP}}}}
	mod(s)
	return s
}

func TestRollback(t *testing.T) {
	a, err := NewAllocator(netip.MustParsePrefix("10.96.0.0/24"), 30000, 30010)
	if err != nil {
		t.Fatal(err)
	}
	s := service(func(*corev1.Service) {})
	finish, err := a.begin(s, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if s.Spec.Ports[0].NodePort != s.Spec.Ports[1].NodePort {
		t.Errorf("the protocols of one port have different node ports: %v", s.Spec.Ports)
	}
	finish(t.Context(), false)
	if len(a.ips.used) != 0 || len(a.ports.used) != 0 {
		t.Errorf("a failed write keeps %v %v", a.ips.used, a.ports.used)
	}
	// A failure half-way gives back what it took before.
	bad := service(func(s *corev1.Service) { s.Spec.Ports[1].NodePort = 5 })
	if _, err := a.begin(bad, nil, false); err == nil {
		t.Fatal("a node port out of range")
	}
	if len(a.ips.used) != 0 || len(a.ports.used) != 0 {
		t.Errorf("a refused service keeps %v %v", a.ips.used, a.ports.used)
	}
}

func TestTypeChangeReleases(t *testing.T) {
	a, err := NewAllocator(netip.MustParsePrefix("10.96.0.0/24"), 30000, 30010)
	if err != nil {
		t.Fatal(err)
	}
	old := service(func(*corev1.Service) {})
	finish, err := a.begin(old, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	finish(t.Context(), true)
	changed := old.DeepCopy()
	changed.Spec.Type = corev1.ServiceTypeClusterIP
	if finish, err = a.begin(changed, old, false); err != nil {
		t.Fatal(err)
	}
	finish(t.Context(), true)
	if len(a.ports.used) != 0 || changed.Spec.Ports[0].NodePort != 0 || changed.Spec.ClusterIP != old.Spec.ClusterIP {
		t.Errorf("%v, %v", a.ports.used, changed.Spec)
	}
	gone := changed.DeepCopy()
	gone.Spec.Type, gone.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	if finish, err = a.begin(gone, changed, false); err != nil {
		t.Fatal(err)
	}
	finish(t.Context(), true)
	if len(a.ips.used) != 0 || gone.Spec.ClusterIP != "" {
		t.Errorf("%v, %v", a.ips.used, gone.Spec)
	}
}
