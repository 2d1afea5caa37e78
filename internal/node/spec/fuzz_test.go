package spec

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// FuzzResolver reads any /etc/resolv.conf of the host and keeps a pod's within the limits.
func FuzzResolver(f *testing.F) {
	for _, text := range []string{"nameserver 10.0.0.1\nsearch a.example. b.example .\noptions ndots:5 timeout:1\n", "nameserver\nsearch\noptions\n", "nameserver ::1%eth0 # x\n; y\n",
		strings.Repeat("nameserver 1.1.1.1\n", 10), "search " + strings.Repeat("a.example ", 500), "\x00\xff"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := ParseResolver(text)
		for _, policy := range []corev1.DNSPolicy{corev1.DNSDefault, corev1.DNSClusterFirst, corev1.DNSNone} {
			c, _ := dnsConfig(&corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: policy, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.2.3.4"}, Searches: []string{"x.example"}}}}, &Node{Resolver: r})
			if c == nil {
				continue
			}
			if len(c.Servers) > maxNameservers || len(c.Searches) > maxSearches || len(strings.Join(c.Searches, " ")) > maxSearchChars {
				t.Errorf("%q: %v", text, c)
			}
		}
	})
}
