package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/base/netns/netnstest"
	"carob/internal/core/netplan/policies"
)

const table = "carob-test-policy"

// in runs a test in a network namespace of its own.
func in(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	netnstest.Run(t, f)
}

// enforcer is an Enforcer with complete lists, without an API.
func enforcer(t *testing.T) *Enforcer {
	t.Helper()
	e, err := New(Config{Table: table, Node: "here"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	e.synced = map[kind]bool{ofPolicies: true, ofPods: true, ofNamespaces: true}
	return e
}

// dice make random objects. Few names, labels and addresses: they meet often.
type dice struct {
	*rand.Rand
	pods int
}

func one[T any](d dice, list ...T) T { return list[d.IntN(len(list))] }

func at(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n + 1)}) }

func at6(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd00::%x", n+1)) }

func (d dice) selector() *metav1.LabelSelector {
	return one(d, &metav1.LabelSelector{},
		&metav1.LabelSelector{MatchLabels: map[string]string{"app": one(d, "a", "b")}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a"}}}})
}

func (d dice) peers() []networkingv1.NetworkPolicyPeer {
	var list []networkingv1.NetworkPolicyPeer
	for range d.IntN(3) {
		list = append(list, one(d, networkingv1.NetworkPolicyPeer{PodSelector: d.selector()},
			networkingv1.NetworkPolicyPeer{NamespaceSelector: d.selector()},
			networkingv1.NetworkPolicyPeer{PodSelector: d.selector(), NamespaceSelector: d.selector()},
			block("10.0.0.0/29", "10.0.0.2/31"), block("0.0.0.0/0", "10.0.0.4/30"), block("fd00::/126")))
	}
	return list
}

func block(cidr string, except ...string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
}

func (d dice) ports() []networkingv1.NetworkPolicyPort {
	var list []networkingv1.NetworkPolicyPort
	for range d.IntN(4) {
		proto := one(d, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		port, end := one(d, intstr.FromInt32(80), intstr.FromInt32(81), intstr.FromString("web"),
			intstr.FromString("dns"), intstr.FromInt32(1)), int32(65535)
		p := networkingv1.NetworkPolicyPort{Protocol: &proto}
		if d.IntN(4) > 0 {
			p.Port = &port
			if port.Type == intstr.Int && d.IntN(4) == 0 {
				p.EndPort = &end
			}
		}
		list = append(list, p)
	}
	return list
}

func (d dice) policy(namespace, name string) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	np.Spec.PodSelector = *d.selector()
	for range d.IntN(3) {
		np.Spec.Ingress = append(np.Spec.Ingress,
			networkingv1.NetworkPolicyIngressRule{From: d.peers(), Ports: d.ports()})
	}
	for range d.IntN(3) {
		np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: d.peers(), Ports: d.ports()})
	}
	return np
}

func (d dice) pod(i int) policies.Pod {
	p := policies.Pod{UID: fmt.Sprint(i), Namespace: []string{"x", "y"}[i%2], Name: fmt.Sprint("pod", i), Here: true,
		Labels: map[string]string{"app": one(d, "a", "b", "c")}, Addresses: []netip.Addr{at(i), at6(i)}}
	if d.IntN(2) == 0 {
		p.Ports = append(p.Ports, policies.Port{Name: one(d, "web", "dns"), Protocol: one(d, uint8(6), 17), Port: 80})
	}
	return p
}

// change changes the plan at random.
func (d dice) change(p *policies.Plan) {
	switch d.IntN(8) {
	case 0, 1, 2:
		_ = p.SetPolicy(d.policy(one(d, "x", "y"), fmt.Sprint("np", d.IntN(4))))
	case 3:
		p.DeletePolicy(one(d, "x", "y"), fmt.Sprint("np", d.IntN(4)))
	case 4:
		p.SetNamespace(one(d, "x", "y"), map[string]string{"app": one(d, "a", "b")})
	case 5:
		if d.pods > 8 { // real pods stay where they are
			p.DeletePod(fmt.Sprint(d.IntN(d.pods)))
		}
	default:
		p.SetPod(d.pod(d.IntN(d.pods)))
	}
}

// kernel is what nft lists of the tables, in a form that can be compared: chains that wait for their
// deletion are left out.
func kernel(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("nft", "-j", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	var doc struct {
		Nftables []map[string]map[string]any `json:"nftables"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatal(err)
	}
	var lines []string
	rules := map[string][]string{}
	var chains []string
	for _, o := range doc.Nftables {
		for what, v := range o {
			delete(v, "handle")
			if list, ok := v["elem"].([]any); ok {
				var all []string
				for _, e := range list {
					all = append(all, jsonText(e))
				}
				slices.Sort(all)
				v["elem"] = all
			}
			switch key := fmt.Sprint(v["family"], " ", v["table"], " "); what {
			case "chain":
				if name := v["name"].(string); v["hook"] != nil {
					rules[key+name] = append(rules[key+name], jsonText(v))
				} else {
					chains = append(chains, key+name)
				}
			case "rule":
				key += v["chain"].(string)
				rules[key] = append(rules[key], jsonText(v))
			case "set", "map":
				lines = append(lines, jsonText(v))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		lines = append(lines, strings.Join(rules[name], "\n"))
	}
	slices.Sort(lines)
	_ = chains // empty ones may be left
	return lines
}

func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
