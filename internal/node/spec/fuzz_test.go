package spec

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// FuzzResolver reads any /etc/resolv.conf of the host and keeps a pod's within the limits.
func FuzzResolver(f *testing.F) {
	for _, text := range []string{"nameserver 10.0.0.1\nsearch a.example. b.example .\noptions ndots:5 timeout:1\n",
		"nameserver\nsearch\noptions\n", "nameserver ::1%eth0 # x\n; y\n",
		strings.Repeat("nameserver 1.1.1.1\n", 10), "search " + strings.Repeat("a.example ", 500), "\x00\xff"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := ParseResolver(text)
		for _, policy := range []corev1.DNSPolicy{corev1.DNSDefault, corev1.DNSClusterFirst, corev1.DNSNone} {
			c, _, _ := dnsConfig(&corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: policy,
				DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.2.3.4"}, Searches: []string{"x.example"}}}},
				&Node{Resolver: r})
			if c == nil {
				continue
			}
			if len(c.Servers) > maxNameservers || len(c.Searches) > maxSearches ||
				len(strings.Join(c.Searches, " ")) > maxSearchChars {
				t.Errorf("%q: %v", text, c)
			}
		}
	})
}

// FuzzPodStrings: whatever a stranger writes into a pod, a resolver file and a hosts file have
// the lines that they should, each with its fields, or the pod is refused.
func FuzzPodStrings(f *testing.F) {
	for _, s := range []string{"a", "x\nnameserver 6.6.6.6", "ndots:5 timeout:1", "1.2.3.4", "fe80::1%eth0",
		"fe80::1%a\nb", "a b", "#", "a\x00", "\u2028", "", "é"} {
		f.Add(s, s, s, s)
	}
	f.Fuzz(func(t *testing.T, server, search, option, host string) {
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			Hostname: host, DNSPolicy: corev1.DNSNone,
			HostAliases: []corev1.HostAlias{{IP: server, Hostnames: []string{host, "b"}}},
			DNSConfig: &corev1.PodDNSConfig{
				Nameservers: []string{server}, Searches: []string{search},
				Options: []corev1.PodDNSConfigOption{{Name: option, Value: &option}},
			},
		}}
		if c, _, err := dnsConfig(pod, &Node{}); err == nil {
			if n := len(strings.Fields(c.Servers[0])); n != 1 {
				t.Errorf("nameserver %q", c.Servers)
			}
			for _, s := range c.Searches {
				if n := len(strings.FieldsFunc(s, func(r rune) bool { return r <= ' ' })); n != 1 {
					t.Errorf("search %q", s)
				}
			}
			if strings.ContainsAny(c.Options[0], "\n\r\x00\v\f") {
				t.Errorf("option %q", c.Options)
			}
		}
		text, err := HostsFile(pod, &Node{}, []string{"10.0.0.1"})
		if err != nil {
			return
		}
		lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		last := lines[len(lines)-1]
		if len(lines) != 11 || len(strings.Split(last, "\t")) != 3 || strings.ContainsAny(last, "\r\x00# ") {
			t.Errorf("%d lines, the last is %q", len(lines), last)
		}
	})
}
