package services

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The IP families of a service, by the concepts page "IPv4/IPv6 dual-stack".
func TestFamilies(t *testing.T) {
	const four, six = corev1.IPv4Protocol, corev1.IPv6Protocol
	single, prefer, require := corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack,
		corev1.IPFamilyPolicyRequireDualStack
	type spec struct {
		policy   *corev1.IPFamilyPolicy
		families []corev1.IPFamily
		ips      []string
		selector bool
	}
	one, two := []corev1.IPFamily{four}, []corev1.IPFamily{four, six}
	none := []string{corev1.ClusterIPNone}
	both := []string{"10.96.0.5", "fd00::5"}
	of := func(s spec) *corev1.Service {
		out := &corev1.Service{Spec: corev1.ServiceSpec{IPFamilyPolicy: s.policy, IPFamilies: s.families,
			ClusterIPs: s.ips}}
		if s.selector {
			out.Spec.Selector = map[string]string{"a": "b"}
		}
		if len(s.ips) > 0 {
			out.Spec.ClusterIP = s.ips[0]
		}
		return out
	}
	for _, c := range []struct {
		name  string
		has   []corev1.IPFamily
		old   *spec
		is    spec
		want  string // policy and families, or a part of the error
		fails bool
	}{
		{name: "says nothing", has: one, is: spec{}, want: "SingleStack [IPv4]"},
		{name: "prefers two where there is one", has: one, is: spec{policy: &prefer}, want: "PreferDualStack [IPv4]"},
		{name: "requires two where there is one", has: one, is: spec{policy: &require},
			want: "ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured", fails: true},
		{name: "the family that is not there", has: one, is: spec{families: []corev1.IPFamily{six}},
			want: "ipFamilies[0]: Invalid value: \"IPv6\": not configured", fails: true},
		{name: "both where there is one", has: one, is: spec{policy: &prefer, families: two},
			want: "ipFamilies[1]: Invalid value: \"IPv6\": not configured", fails: true},
		{name: "two families without a policy", has: two, is: spec{families: two},
			want: "when multiple IP families are specified", fails: true},
		{name: "two addresses without a policy", has: two, is: spec{ips: both},
			want: "when multiple cluster IPs are specified", fails: true},
		{name: "an address of the other family", has: one, is: spec{ips: []string{"fd00::5"}},
			want: "clusterIPs[0]: Invalid value: [\"fd00::5\"]: IPv6 is not configured", fails: true},
		{name: "an address of the second family", has: two, is: spec{ips: []string{"fd00::5"}},
			want: "SingleStack [IPv6]"},
		{name: "headless, selected", has: one, is: spec{ips: none, selector: true}, want: "SingleStack [IPv4]"},
		{name: "headless, of others", has: one, is: spec{ips: none}, want: "RequireDualStack [IPv4 IPv6]"},
		{name: "headless, of others, one family", has: one,
			is: spec{ips: none, policy: &single, families: []corev1.IPFamily{six}}, want: "SingleStack [IPv6]"},
		{name: "prefers two of two", has: two, is: spec{policy: &prefer}, want: "PreferDualStack [IPv4 IPv6]"},
		{name: "requires two, the second first", has: two, is: spec{policy: &require, families: []corev1.IPFamily{six}},
			want: "RequireDualStack [IPv6 IPv4]"},
		{name: "gives the second back", has: two, old: &spec{policy: &require, families: two, ips: both},
			is: spec{policy: &single, families: two, ips: both}, want: "SingleStack [IPv4] [10.96.0.5]"},
		{name: "drops an address only", has: two, old: &spec{policy: &require, families: two, ips: both},
			is: spec{policy: &require, families: two, ips: both[:1]}, want: "release the secondary cluster IP",
			fails: true},
		{name: "drops a family only", has: two, old: &spec{policy: &prefer, families: two, ips: both},
			is: spec{policy: &prefer, families: one, ips: both}, want: "release the secondary IP family", fails: true},
	} {
		s := of(c.is)
		var old *corev1.Service
		if c.old != nil {
			old = of(*c.old)
		}
		errs := settleFamilies(s, old, c.has)
		got := errs.ToAggregate()
		text := fmt.Sprint(got)
		if got == nil {
			text = fmt.Sprintf("%s %v %v", *s.Spec.IPFamilyPolicy, s.Spec.IPFamilies, s.Spec.ClusterIPs)
		}
		if (got != nil) != c.fails || !strings.Contains(text, c.want) {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
	}
}
