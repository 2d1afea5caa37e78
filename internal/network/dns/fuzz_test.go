package dns

import (
	"testing"

	"github.com/miekg/dns"

	core "carob/internal/core/netplan/dns"
)

// FuzzHandle sends what is no question, or a strange one. Every answer can be read by another
// implementation, repeats the question, and fits into what the client takes.
func FuzzHandle(f *testing.F) {
	s, u, _ := made(f, `.:53 {
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa
    }
    hosts {
        192.0.2.7 host.example
        fallthrough
    }
    template ANY ANY tmpl.example {
        answer "{{ .Name }} 9 IN TXT \"{{ .Type }}\""
    }
    rewrite name substring old new
    rewrite name regex (.*)\.x\. {1}.y. answer name (.*)\.y\. {1}.x.
    cache 30
    forward . 192.0.2.53
}`)
	u.set(func(_ core.Upstream, m *dns.Msg) (*dns.Msg, error) { return address(m, "192.0.2.1", 30), nil })
	for _, name := range []string{"web.ns.svc.cluster.local.", "out.ns.svc.cluster.local.", ".", "a\\000\\255\\.b.x.",
		"7.0.96.10.in-addr.arpa.", "host.example.", "old.example.", "1-2-3-4.ns.pod.cluster.local.", "a.tmpl.example."} {
		for _, typ := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT, dns.TypeANY, dns.TypeHINFO} {
			m := new(dns.Msg).SetQuestion(name, typ)
			m.SetEdns0(1232, true)
			wire, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(wire, true)
			f.Add(wire[:len(wire)-3], false)
		}
	}
	f.Fuzz(func(t *testing.T, msg []byte, udp bool) {
		var q core.Query
		verdict, _ := q.Parse(msg)
		answer, later := s.handle(msg, make([]byte, 0, core.MaxMessage), pod, udp)
		if later != nil {
			answer = later(t.Context())
		}
		if (answer == nil) != (verdict == core.Drop) {
			t.Fatalf("verdict %d, answer %x", verdict, answer)
		}
		if answer == nil {
			return
		}
		limit := core.MaxMessage
		if udp {
			limit = int(q.UDPSize)
		}
		var m dns.Msg
		if err := m.Unpack(answer); err != nil {
			t.Fatalf("%v: %x", err, answer)
		}
		if m.Id != q.ID || !m.Response || len(answer) > limit {
			t.Errorf("%d bytes of %d: %v", len(answer), limit, m.MsgHdr)
		}
		if verdict == core.Accept {
			var again core.Query
			question := append([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, answer[12:]...)
			again.Parse(question)
			if string(again.Name()) != string(q.Name()) || again.Type != q.Type || again.Class != q.Class {
				t.Errorf("the question is %q, the answer has %q", q.Name(), again.Name())
			}
		}
	})
}

// FuzzUpstream answers with what a hostile server could send: nothing but a valid answer to the
// client leaves, and nothing is kept that cannot be read again.
func FuzzUpstream(f *testing.F) {
	m := address(new(dns.Msg).SetQuestion("example.com.", dns.TypeA), "192.0.2.1", 30)
	m.Compress = true
	wire, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire)
	f.Add(append(wire[:12:12], 0xc0, 0x0c, 0, 1, 0, 1))
	s, u, _ := made(f, ".:53 {\ncache 30 {\nserve_stale 1h\n}\nforward . 192.0.2.53\n}")
	f.Fuzz(func(t *testing.T, wire []byte) {
		u.set(func(_ core.Upstream, request *dns.Msg) (*dns.Msg, error) {
			m := new(dns.Msg)
			if err := m.Unpack(wire); err != nil {
				return nil, err
			}
			m.Id, m.Response, m.Opcode, m.Question = request.Id, true, dns.OpcodeQuery, request.Question
			return m, nil
		})
		for range 2 { // from the server, then from the cache
			query(t, s, "eXample.com.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false) })
		}
		c := s.blocks.Load().all[0].cache
		c.mu.Lock()
		clear(c.entries)
		c.bytes, c.counts = 0, [2]int{}
		c.mu.Unlock()
	})
}
