package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of a resolv.conf (L3.147).
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048

	maxSearchLength = 253
)

// Resolver is a parsed resolv.conf.
type Resolver struct{ Nameservers, Searches, Options []string }

// ParseResolver reads a resolv.conf; unknown lines are skipped. The last search line and the last options line count.
func ParseResolver(text []byte) Resolver {
	var r Resolver
	for line := range strings.Lines(string(text)) {
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if len(fields) > 1 {
				r.Nameservers = append(r.Nameservers, fields[1])
			}
		case "search":
			r.Searches = r.Searches[:0]
			for _, s := range fields[1:] {
				if s != "." {
					r.Searches = append(r.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			r.Options = appendOptions(nil, fields[1:]...)
		}
	}
	return r
}

// OnLoopback reports whether all its servers are on the host's loopback addresses, where no pod
// reaches them.
func (r *Resolver) OnLoopback() bool {
	return len(r.Nameservers) > 0 && !slices.ContainsFunc(r.Nameservers, func(s string) bool {
		ip, err := netip.ParseAddr(s)
		return err != nil || !ip.IsLoopback()
	})
}

// CheckResolver returns which part of the host's resolver file, at path, exceeds the limits of pods (L10.75); empty:
// none does.
func CheckResolver(path string, r Resolver, clusterDomain string) string {
	most := maxSearches
	if clusterDomain != "" {
		most -= 3 // of the cluster
	}
	if len(r.Searches) > most {
		return fmt.Sprintf("Resolv.conf file '%s' contains search line consisting of more than %d domains!", path, most)
	}
	for _, s := range r.Searches {
		if len(s) > maxSearchLength {
			return fmt.Sprintf("Resolv.conf file %q contains a search path which length is more than allowed %d chars!",
				path, maxSearchLength)
		}
	}
	if len(strings.Join(r.Searches, " ")) > maxSearchChars {
		return fmt.Sprintf("Resolv.conf file '%s' contains search line which length is more than allowed %d chars!",
			path, maxSearchChars)
	}
	return ""
}

// dnsConfig is the resolver of a pod (L3.146) within the limits (L3.147).
func dnsConfig(pod *corev1.Pod, node *Node) (*cri.DNSConfig, []Warning, error) {
	if err := checkDNS(pod.Spec.DNSConfig); err != nil {
		return nil, nil, err
	}
	var warnings []Warning
	policy := pod.Spec.DNSPolicy
	if policy == "" {
		policy = corev1.DNSClusterFirst
	}
	clusterFirst := policy == corev1.DNSClusterFirstWithHostNet || policy == corev1.DNSClusterFirst &&
		!pod.Spec.HostNetwork
	if clusterFirst && len(node.ClusterDNS) == 0 {
		if !node.NoClusterDNS {
			warnings = append(warnings, Warning{
				Reason: "MissingClusterDNS",
				Message: fmt.Sprintf(
					"pod: %q. kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
					podRef(pod), policy, corev1.DNSDefault),
			})
		}
		clusterFirst = false
	}
	var dns cri.DNSConfig
	switch {
	case clusterFirst:
		dns.Servers = slices.Clone(node.ClusterDNS)
		if d := node.ClusterDomain; d != "" {
			dns.Searches = []string{pod.Namespace + ".svc." + d, "svc." + d, d}
		}
		dns.Searches = appendNew(dns.Searches, node.Resolver.Searches...)
		dns.Options = []string{"ndots:5"}
	case policy != corev1.DNSNone:
		dns.Servers = slices.Clone(node.Resolver.Nameservers)
		dns.Searches = slices.Clone(node.Resolver.Searches)
		dns.Options = slices.Clone(node.Resolver.Options)
	}
	if c := pod.Spec.DNSConfig; c != nil {
		dns.Servers = appendNew(dns.Servers, c.Nameservers...)
		dns.Searches = appendNew(dns.Searches, c.Searches...)
		options := make([]string, 0, len(c.Options))
		for _, o := range c.Options {
			text := o.Name
			if o.Value != nil && *o.Value != "" {
				text += ":" + *o.Value
			}
			options = append(options, text)
		}
		dns.Options = appendOptions(dns.Options, options...)
	}
	return &dns, append(warnings, limitDNS(&dns)...), nil
}

func limitDNS(dns *cri.DNSConfig) []Warning {
	var warnings []Warning
	if len(dns.Servers) > maxNameservers {
		dns.Servers = dns.Servers[:maxNameservers]
		warnings = append(warnings, Warning{
			Reason: "DNSConfigForming",
			Message: "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " +
				strings.Join(dns.Servers, " "),
		})
	}
	var kept []string
	chars := -1 // no blank before the first
	for _, s := range dns.Searches[:min(len(dns.Searches), maxSearches)] {
		if len(s) > maxSearchLength {
			continue
		}
		if chars += 1 + len(s); chars > maxSearchChars {
			break
		}
		kept = append(kept, s)
	}
	if len(kept) < len(dns.Searches) {
		dns.Searches = kept
		warnings = append(warnings, Warning{
			Reason: "DNSConfigForming",
			Message: "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " +
				strings.Join(dns.Searches, " "),
		})
	}
	return warnings
}

// appendNew appends what list does not have yet.
func appendNew(list []string, more ...string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// appendOptions appends resolver options; one with a known name takes the place of the older.
func appendOptions(list []string, more ...string) []string {
	name := func(option string) string {
		n, _, _ := strings.Cut(option, ":")
		return n
	}
	places := make(map[string]int, len(list)+len(more)) // users may write any number of options
	for i, o := range slices.Backward(list) {
		places[name(o)] = i // the first of a name
	}
	for _, o := range more {
		if i, ok := places[name(o)]; ok {
			list[i] = o
			continue
		}
		places[name(o)] = len(list)
		list = append(list, o)
	}
	return list
}
