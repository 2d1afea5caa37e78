package dns_test

import (
	"testing"

	mdns "github.com/miekg/dns"

	"carob/internal/core/netplan/dns"
)

// FuzzParse: a question that is accepted is the one that another implementation reads.
func FuzzParse(f *testing.F) {
	for _, name := range []string{".", "a.b.", "\\000\\255.x.", "A.in-addr.arpa."} {
		m := new(mdns.Msg).SetQuestion(name, mdns.TypeA)
		m.SetEdns0(4096, true)
		wire, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var q dns.Query
		if verdict, _ := q.Parse(wire); verdict != dns.Accept {
			return
		}
		var m mdns.Msg
		if err := m.Unpack(wire); err != nil {
			return // of an additional record that is not read here
		}
		name := dns.Text(q.Name())
		back, err := mdns.NewRR(name + " 0 IN A 1.2.3.4")
		if len(m.Question) != 1 || uint16(q.Type) != m.Question[0].Qtype || q.ID != m.Id ||
			q.Class != m.Question[0].Qclass {
			t.Errorf("%+v", m)
		}
		if err == nil && back != nil && !mdns.IsFqdn(name) {
			t.Errorf("text %q", name)
		}
		text, err := mdns.NewRR(m.Question[0].Name + " 0 IN A 1.2.3.4")
		if err == nil && back != nil && text != nil && back.Header().Name != "" {
			a, b := make([]byte, 300), make([]byte, 300)
			n, err1 := mdns.PackDomainName(name, a, 0, nil, false)
			o, err2 := mdns.PackDomainName(m.Question[0].Name, b, 0, nil, false)
			if err1 == nil && err2 == nil && string(a[:n]) != string(b[:o]) {
				t.Errorf("%q and %q", name, m.Question[0].Name)
			}
		}
	})
}

// FuzzCorefile: any text gives a configuration or an error.
func FuzzCorefile(f *testing.F) {
	f.Add(dns.DefaultCorefile("cluster.local"))
	f.Add(". {\nrewrite name regex (.*)a {1}b answer name (.*)b {1}a\nhosts {\n1.2.3.4 a\nfallthrough\n}\n}")
	f.Add("10.0.0.0/9 fd00::/13 {\ntemplate IN A {\nanswer \"x\\\"{{\"\n}\nforward . tls://9.9.9.9%a.b:853 {\nexcept c\n}\n}")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := dns.Parse(text)
		if (c == nil) == (err == nil) {
			t.Errorf("%v, %v", c, err)
		}
		if err != nil {
			return
		}
		for _, s := range c.Servers {
			for i := range s.Rewrites {
				name, _, ok := s.Rewrites[i].Question("www.example.com.", "A")
				if ok {
					s.Rewrites[i].Owner(name, "www.example.com.", name)
					s.Rewrites[i].Value(name)
				}
			}
		}
	})
}
