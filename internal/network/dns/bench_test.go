package dns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "carob/internal/core/netplan/dns"
)

// many adds Services to a zone.
func many(s *Server, n int) {
	for i := range n {
		s.zone.change(nil, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("s", i)},
			Spec: corev1.ServiceSpec{ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()}})
	}
}

// BenchmarkHandle is the work for one answer without the network.
func BenchmarkHandle(b *testing.B) {
	s, _, _ := made(b, fmt.Sprintf(forwarding, ""))
	many(s, 10_000)
	query(b, s, "example.com.", dns.TypeA)
	for what, name := range map[string]string{"Service": "s77.ns.svc.cluster.local.", "NXDOMAIN": "x.ns.svc.cluster.local.",
		"cached": "example.com."} {
		wire, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
		if err != nil {
			b.Fatal(err)
		}
		out := make([]byte, 0, core.MaxMessage)
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if answer, _ := s.handle(wire, out, pod, true); answer == nil {
					b.Fatal("no answer")
				}
			}
		})
	}
}

// BenchmarkChange is the work for one change of a Service with 10,000 others.
func BenchmarkChange(b *testing.B) {
	s, _, _ := made(b, fmt.Sprintf(forwarding, ""))
	many(s, 10_000)
	one := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s5"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.5"}}
	for b.Loop() {
		s.zone.change(one, one)
	}
}

const queryEnv = "CAROB_TEST_DNS_ASK"

// BenchmarkUDP answers questions of another process over a socket. CPU/answer is the time of this
// process, with the kernel's share: what one core can answer.
func BenchmarkUDP(b *testing.B) {
	if at := os.Getenv(queryEnv); at != "" {
		queryMany(b, at)
		return
	}
	s, _, _ := made(b, fmt.Sprintf(forwarding, ""))
	many(s, 10_000)
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() { s.serveUDP(b.Context(), conn, &group) })
	defer group.Wait()
	defer conn.Close()
	cmd := exec.Command(os.Args[0], "-test.run", "^$", "-test.bench", "^BenchmarkUDP$", "-test.benchtime", "1x")
	cmd.Env = append(os.Environ(), queryEnv+"="+conn.LocalAddr().String(), queryEnv+"_N="+strconv.Itoa(b.N))
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	b.ResetTimer()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	b.StopTimer()
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	spent := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(spent)/float64(b.N), "cpu-ns/answer")
}

// queryMany sends queries, 64 of them in flight.
func queryMany(b *testing.B, at string) {
	n, err := strconv.Atoi(os.Getenv(queryEnv + "_N"))
	if err != nil {
		b.Fatal(err)
	}
	conn, err := net.Dial("udp", at)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	wire, err := new(dns.Msg).SetQuestion("s77.ns.svc.cluster.local.", dns.TypeA).Pack()
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 4096)
	for sent, got := 0, 0; got < n; {
		for sent < n && sent-got < 64 {
			if _, err := conn.Write(wire); err != nil {
				b.Fatal(err)
			}
			sent++
		}
		if _, err := conn.Read(buf); err != nil {
			b.Fatal(err)
		}
		got++
	}
}
