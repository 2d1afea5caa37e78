package dns_test

import (
	"strings"
	"testing"
	"time"

	"carob/internal/base/errkind"
	"carob/internal/core/netplan/dns"
)

// Errors in a Corefile name the line.
func TestCorefileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "the Corefile has no server block",
		". {":                                 "Corefile:1: { has no }",
		"}":                                   "Corefile:1: } without {",
		". {\nerrors }\n}":                    "Corefile:2: } must be on a line of its own",
		"{\n}":                                "Corefile:1: a server block names its zones before {",
		".:5353 {\n}":                         `Corefile:1: ".:5353": carob's DNS answers on port 53 only`,
		"tls://. {\n}":                        `carob's DNS answers plain DNS only`,
		"import x {\n}":                       "imports are not supported",
		". {\n}\na {\n}\n. {\n}":              "Corefile:5: zone . has a server block in line 1 already",
		". {\n\nroute53 x\n}":                 `Corefile:3: carob's DNS does not support the directive "route53"`,
		". {\ncache 30\ncache\n}":             "Corefile:3: cache may be in a server block once",
		". {\nkubernetes ip6.arpa\n}":         "kubernetes needs a zone that is not a reverse zone",
		"a {\nkubernetes {\nttl 9999\n}\n}":   `Corefile:3: "9999" is not a number from 0 to 3600`,
		"a {\nkubernetes {\npods x\n}\n}":     "Corefile:3: pods is one of",
		"a {\nkubernetes {\nx\n}\n}":          `Corefile:3: kubernetes: carob's DNS does not support the option "x"`,
		". {\nforward .\n}":                   "forward takes a zone",
		". {\nforward . /etc/shadow\n}":       "reads only /etc/resolv.conf",
		". {\nforward . example.com\n}":       `"example.com" is not an IP address`,
		". {\nhosts /etc/shadow\n}":           "reads no files",
		". {\nhosts {\nx y\n}\n}":             `"x" is neither an option nor an address`,
		". {\nrewrite name regex ( b\n}":      "is not a regular expression",
		". {\nrewrite edns0 local set 1\n}":   `rewrites name, type, and ttl, not "edns0"`,
		". {\ncache x..y\n}":                  "is not a DNS name",
		". {\ncache {\nprefetch 1 1m 5\n}\n}": `lacks the sign %`,
		". {\nlog . \"{combined}\"\n}":        "formats are not supported",
		". {\nerrors \"x\n}":                  "Corefile:2: a quoted word has no end",
		strings.Repeat("a", 1<<21):            "bytes, at most",
		". {\ntemplate IN A {\nexpr 1\n}\n}":  `does not support the option "expr"`,
		strings.Repeat("x", 64) + " {\n}":     "is not a DNS name",
	} {
		_, err := dns.Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || !errkind.Is(err, errkind.Invalid) {
			t.Errorf("%.60q: %v, want %s", text, err, want)
		}
	}
}

// The Corefile that kubeadm writes, and one with all supported directives.
func TestCorefile(t *testing.T) {
	c := config(t, `# as kubeadm writes it
.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success
       disable denial
    }
    loop
    reload
    loadbalance
}
Corp.example dns://10.1.0.0/16:53, fd00::/8 {
    forward . 10.0.0.1 [fd00::1]:5353 tls://9.9.9.9%dns.quad9.net
}`)
	if len(c.Servers) != 2 {
		t.Fatalf("%d server blocks", len(c.Servers))
	}
	a := c.Servers[0]
	if a.Text[0] != "." || string(a.Kubernetes.Primary) != "\x07cluster\x05local\x00" || a.Kubernetes.TTL != 30 ||
		len(a.Kubernetes.Fallthrough) != 2 || a.Kubernetes.Pods != dns.PodsInsecure || !a.Loop || !a.Shuffle ||
		!a.Forwards[0].Resolver || a.Forwards[0].MaxConcurrent != 1000 || a.Cache.Success.TTL != 30*time.Second ||
		a.Cache.Success.Capacity != 0 || a.Cache.Denial.Capacity != 0 {
		t.Errorf("%+v", a)
	}
	if b := c.Servers[1]; len(b.Text) != 3 || b.Text[0] != "corp.example." || b.Text[1] != "1.10.in-addr.arpa." ||
		b.Text[2] != "d.f.ip6.arpa." || len(b.Forwards[0].To) != 3 || b.Forwards[0].To[2].TLSName != "dns.quad9.net" ||
		b.Forwards[0].To[2].Addr.Port() != 853 || b.Forwards[0].To[1].Addr.Port() != 5353 {
		t.Errorf("%+v", b)
	}
	for _, domain := range []string{"cluster.local", "example"} {
		config(t, dns.DefaultCorefile(domain))
	}
}
