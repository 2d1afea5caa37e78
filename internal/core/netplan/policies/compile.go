package policies

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// compiled is the compiled spec of a policy, without any pods.
type compiled struct {
	pods    labels.Selector
	applies [2]bool
	rules   [2][]rule
}

// rule allows traffic from or to one of its peers at one of its ports.
type rule struct {
	anyPeer bool
	groups  []groupKey
	ranges  [2][]addrRange // IPv4, IPv6
	anyPort bool
	ports   []portMatch
}

// portMatch is one protocol of a rule's ports.
type portMatch struct {
	protocol uint8
	all      bool
	ranges   []portRange
	names    []string
}

// groupKey names a group of pods: those of one namespace, or of all namespaces that match.
type groupKey struct {
	namespace  string // "": all namespaces that match the selector
	namespaces string // selector as a text
	pods       string // selector as a text
}

// name derives a name for the kernel from strings of users. Different strings get different names,
// and no part of a string becomes a part of the name.
func name(kind string, texts ...string) string {
	h := sha256.New()
	for _, t := range texts {
		fmt.Fprintf(h, "%d:%s,", len(t), t)
	}
	return fmt.Sprintf("%s-%x", kind, h.Sum(nil)[:16])
}

// compile reads a policy (N5.1 to N5.12). Parts that it cannot parse allow nothing, and the error
// names them; the API server does not accept these policies.
func compile(p *networkingv1.NetworkPolicy) (compiled, map[string]labels.Selector, error) {
	c := compiler{namespace: p.Namespace, selectors: map[string]labels.Selector{}}
	var out compiled
	var err error
	if out.pods, err = metav1.LabelSelectorAsSelector(&p.Spec.PodSelector); err != nil {
		c.errs = append(c.errs, fmt.Errorf("spec.podSelector: %w", err))
		out.pods = labels.Everything() // isolated rather than open
	}
	types := p.Spec.PolicyTypes
	if len(types) == 0 {
		types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	out.applies[Ingress] = slices.Contains(types, networkingv1.PolicyTypeIngress)
	out.applies[Egress] = slices.Contains(types, networkingv1.PolicyTypeEgress)
	if out.applies[Ingress] {
		for _, r := range p.Spec.Ingress {
			out.rules[Ingress] = append(out.rules[Ingress], c.rule(r.From, r.Ports))
		}
	}
	if out.applies[Egress] {
		for _, r := range p.Spec.Egress {
			out.rules[Egress] = append(out.rules[Egress], c.rule(r.To, r.Ports))
		}
	}
	if err := errors.Join(c.errs...); err != nil {
		return out, c.selectors, fmt.Errorf("network policy %s/%s: %w", p.Namespace, p.Name, err)
	}
	return out, c.selectors, nil
}

type compiler struct {
	namespace string
	selectors map[string]labels.Selector // by their text
	errs      []error
}

// selector returns the text of a selector; equivalent selectors have the same text.
func (c *compiler) selector(s *metav1.LabelSelector) (string, bool) {
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		c.errs = append(c.errs, err)
		return "", false
	}
	text := sel.String()
	c.selectors[text] = sel
	return text, true
}

func (c *compiler) rule(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) rule {
	r := rule{anyPeer: len(peers) == 0, anyPort: len(ports) == 0}
	seen := map[groupKey]bool{}
	for _, p := range peers {
		switch {
		case p.IPBlock != nil:
			for _, b := range blockRanges(p.IPBlock) {
				f := familyOf(b.from)
				r.ranges[f] = append(r.ranges[f], b)
			}
		case p.NamespaceSelector != nil || p.PodSelector != nil:
			if k, ok := c.group(p); ok && !seen[k] {
				seen[k], r.groups = true, append(r.groups, k)
			}
		}
	}
	slices.SortFunc(r.groups, func(a, b groupKey) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.namespaces, b.namespaces),
			cmp.Compare(a.pods, b.pods))
	})
	for f := range r.ranges {
		r.ranges[f] = merge(r.ranges[f])
	}
	r.ports = portMatches(ports)
	return r
}

// group returns the group of pods of a peer (N5.7).
func (c *compiler) group(p networkingv1.NetworkPolicyPeer) (k groupKey, ok bool) {
	pods := p.PodSelector
	if pods == nil {
		pods = &metav1.LabelSelector{}
	}
	if k.pods, ok = c.selector(pods); !ok {
		return k, false
	}
	if p.NamespaceSelector == nil {
		k.namespace = c.namespace
		return k, true
	}
	k.namespaces, ok = c.selector(p.NamespaceSelector)
	return k, ok
}

func protocolNumber(p corev1.Protocol) uint8 {
	switch p {
	case corev1.ProtocolTCP, "":
		return TCP
	case corev1.ProtocolUDP:
		return UDP
	case corev1.ProtocolSCTP:
		return SCTP
	}
	return 0
}

// portMatches sorts a rule's ports by protocol (N5.10).
func portMatches(ports []networkingv1.NetworkPolicyPort) []portMatch {
	found := map[uint8]*portMatch{}
	for _, p := range ports {
		protocol := TCP
		if p.Protocol != nil {
			protocol = protocolNumber(*p.Protocol)
		}
		if protocol == 0 {
			continue
		}
		m := found[protocol]
		if m == nil {
			m = &portMatch{protocol: protocol}
			found[protocol] = m
		}
		switch {
		case p.Port == nil:
			m.all = m.all || p.EndPort == nil
		case p.Port.Type == intstr.String:
			if p.EndPort == nil {
				m.names = append(m.names, p.Port.StrVal)
			}
		default:
			from, to := p.Port.IntVal, p.Port.IntVal
			if p.EndPort != nil {
				to = *p.EndPort
			}
			if from >= 1 && from <= to && to <= 65535 {
				m.ranges = append(m.ranges, portRange{uint16(from), uint16(to)})
			}
		}
	}
	var out []portMatch
	for _, protocol := range slices.Sorted(maps.Keys(found)) {
		m := found[protocol]
		if m.all {
			m.ranges, m.names = nil, nil
		}
		m.ranges = mergePorts(m.ranges)
		slices.Sort(m.names)
		m.names = slices.Compact(m.names)
		if m.all || len(m.ranges)+len(m.names) > 0 {
			out = append(out, *m)
		}
	}
	return out
}

func (k groupKey) set() string { return name("pods", k.namespace, k.namespaces, k.pods) }

// portKey is the name of a container port, with its protocol.
type portKey struct {
	protocol uint8
	name     string
}

func (k portKey) set() string { return name("port", strconv.Itoa(int(k.protocol)), k.name) }

// rangesSet returns the set of address ranges, and its name; "" without ranges.
func rangesSet(list []addrRange) (string, *Set) {
	if len(list) == 0 {
		return "", nil
	}
	s := &Set{Kind: AddressRanges, Elements: make(map[Element]struct{}, len(list))}
	var text strings.Builder
	for _, r := range list {
		s.Elements[Element{Addr: r.from, To: r.to}] = struct{}{}
		text.WriteString(r.from.String() + "-" + r.to.String() + " ")
	}
	return name("blocks", text.String()), s
}

func portsSet(list []portRange) (string, *Set) {
	s := &Set{Kind: PortRanges, Elements: make(map[Element]struct{}, len(list))}
	var text strings.Builder
	for _, r := range list {
		s.Elements[Element{Port: r.from, EndPort: r.to}] = struct{}{}
		fmt.Fprintf(&text, "%d-%d ", r.from, r.to)
	}
	return name("ports", text.String()), s
}
