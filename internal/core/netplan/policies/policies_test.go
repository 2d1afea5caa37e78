package policies_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/netplan/policies"
)

// After each of many random changes, the applied changes give the table that is computed anew, and
// its verdicts equal those of the naive model.
func TestChanges(t *testing.T) {
	seeds, steps := 50, 200
	if n, err := strconv.Atoi(os.Getenv("POLICY_SEEDS")); err == nil {
		seeds = n
	}
	denied := 0
	for seed := range seeds {
		d := dice{rand.New(rand.NewPCG(uint64(seed), 5))}
		w := &world{policies: map[string]*networkingv1.NetworkPolicy{}, namespaces: map[string]map[string]string{},
			pods: map[string]policies.Pod{}}
		plan, applied := policies.New(), policies.NewTable()
		for step := range steps {
			at := fmt.Sprintf("seed %d, step %d", seed, step)
			for range 1 + d.pick(3) { // several changes at once make one change of the table
				if err := d.change(w, plan); err != nil {
					t.Fatalf("%s: %v", at, err)
				}
			}
			c, fresh := plan.Take(), w.compute()
			if diff := policies.Diff(&applied, &fresh); !reflect.DeepEqual(c, diff) {
				t.Fatalf("%s: what changed is not the difference:\n%s", at, cmp.Diff(diff, c, addresses))
			}
			applied.Apply(c)
			if !reflect.DeepEqual(applied, fresh) {
				t.Fatalf("%s: applying the changes gives another table:\n%s", at, cmp.Diff(fresh, applied, addresses))
			}
			for range 20 {
				p := d.packet()
				want := w.allowed(p)
				if got := applied.Allowed(p); got != want {
					t.Fatalf("%s: %+v allowed: %v, the model says %v", at, p, got, want)
				}
				if !want {
					denied++
				}
			}
			if again := plan.Take(); !again.Empty() {
				t.Fatalf("%s: changed twice: %+v", at, again)
			}
		}
		for uid := range w.pods {
			plan.DeletePod(uid)
		}
		for _, np := range w.policies {
			plan.DeletePolicy(np.Namespace, np.Name)
		}
		applied.Apply(plan.Take())
		if !applied.V4.Empty() || len(applied.V4.Sets)+len(applied.V4.Chains)+len(applied.V6.Sets) > 0 {
			t.Fatalf("seed %d: left over: %+v", seed, applied)
		}
	}
	if denied == 0 {
		t.Error("nothing was ever denied")
	}
}

var addresses = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func labelsOf(kv ...string) map[string]string {
	l := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		l[kv[i]] = kv[i+1]
	}
	return l
}

func newPolicy(name string, selects map[string]string,
	spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
	spec.PodSelector.MatchLabels = selects
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: spec}
}

// The cost of a change depends on its effect: changes that no policy selects are free, and a label
// of one pod among ten thousand changes the elements of that pod only.
func TestSizeOfChanges(t *testing.T) {
	p := policies.New()
	p.SetNamespace("x", labelsOf("team", "a"))
	const pods = 10_000
	at := func(i int) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})} }
	one := func(i int, l map[string]string) policies.Pod {
		return policies.Pod{UID: strconv.Itoa(i), Namespace: "x", Labels: l, Addresses: at(i), Here: i < 100}
	}
	for i := range pods {
		p.SetPod(one(i, labelsOf("app", strconv.Itoa(i%1000))))
	}
	if c := p.Take(); !c.Empty() {
		t.Errorf("pods without policies: %+v", c)
	}
	// 10,000 policies; a hundred of them select a pod of this node.
	for i := range pods {
		_ = p.SetPolicy(newPolicy(strconv.Itoa(i), labelsOf("app", strconv.Itoa(i), "only", "one"),
			networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{
				{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}}))
	}
	if c := p.Take(); !c.Empty() {
		t.Errorf("policies that select no pod of this node: %d changes", c.Size())
	}
	p.SetPod(one(7, labelsOf("app", "7", "only", "one")))
	c := p.Take()
	// Two isolated addresses, two chains with four rules, an element in the set Own, and the set of
	// all pods.
	if got := c.Size(); got < pods || got > pods+12 {
		t.Errorf("the first isolated pod: %d changes", got)
	}
	p.SetPod(one(5000, labelsOf("app", "other")))
	if c := p.Take(); !c.Empty() {
		t.Errorf("a label that no policy selects by: %d changes", c.Size())
	}
	p.DeletePod("5000")
	if c := p.Take(); c.Size() != 1 {
		t.Errorf("a peer goes: %d changes", c.Size())
	}
	p.SetPod(one(8, labelsOf("app", "8", "only", "one")))
	if c := p.Take(); c.Size() > 12 {
		t.Errorf("another isolated pod: %d changes", c.Size())
	}
	work := testing.AllocsPerRun(10, func() {
		p.SetPod(one(9, labelsOf("app", "9", "x", "y")))
		p.SetPod(one(9, labelsOf("app", "9", "x", "z")))
		p.Take()
	})
	if work > 200 {
		t.Errorf("a label of one pod among %d pods and policies allocates %v times", pods, work)
	}
}

// A rule with many peers and many ports costs their sum, not their product: any user may write one.
func TestManyPeersAndPorts(t *testing.T) {
	const peers, ports = 3_000, 4_000
	var r networkingv1.NetworkPolicyIngressRule
	for i := range peers {
		r.From = append(r.From, networkingv1.NetworkPolicyPeer{
			PodSelector: &metav1.LabelSelector{MatchLabels: labelsOf("app", strconv.Itoa(i))}})
	}
	for i := range ports {
		name := intstr.FromString(fmt.Sprint("p", i))
		r.Ports = append(r.Ports, networkingv1.NetworkPolicyPort{Port: &name})
	}
	p := policies.New()
	p.SetNamespace("x", nil)
	server, client := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	p.SetPod(policies.Pod{UID: "server", Namespace: "x", Here: true, Addresses: []netip.Addr{server},
		Ports: []policies.Port{{Name: "p3999", Protocol: policies.TCP, Port: 8080}}})
	p.SetPod(policies.Pod{UID: "client", Namespace: "x", Labels: labelsOf("app", "2999"),
		Addresses: []netip.Addr{client}})
	spec := networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{r, r}}
	for _, np := range []string{"one", "another"} {
		_ = p.SetPolicy(newPolicy(np, nil, spec))
	}
	rules := func() (n int) {
		table := p.Table()
		for _, c := range table.V4.Chains {
			n += len(c.Rules)
		}
		return n
	}
	if n := rules(); n > 2*(peers+ports)+10 {
		t.Errorf("%d rules", n)
	}
	for port, want := range map[uint16]bool{8080: true, 8081: false} {
		packet := policies.Packet{Src: client, Dst: server, Protocol: policies.TCP, Port: port}
		if got := p.Allowed(packet); got != want {
			t.Errorf("port %d: %v", port, got)
		}
	}
	p.DeletePolicy("x", "one")
	if !p.Allowed(policies.Packet{Src: client, Dst: server, Protocol: policies.TCP, Port: 8080}) {
		t.Error("the other policy lost its ports")
	}
	p.DeletePolicy("x", "another")
	if n := rules(); n != 0 {
		t.Errorf("%d rules are left", n)
	}
}

// Strings of users are not part of a name, and different objects never get the same name.
func TestNames(t *testing.T) {
	p := policies.New()
	p.SetNamespace("x", nil)
	for i, evil := range []string{"a}; flush ruleset; {", "\x00", "a,1:b", "ä", ""} {
		spec := networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			Ports: []networkingv1.NetworkPolicyPort{{Port: &intstr.IntOrString{Type: intstr.String, StrVal: evil}}}}}}
		np := newPolicy(evil+strconv.Itoa(i), nil, spec)
		if err := p.SetPolicy(np); err != nil {
			t.Error(err)
		}
	}
	p.SetPod(policies.Pod{UID: "u", Namespace: "x", Here: true, Addresses: []netip.Addr{address(1)}})
	table := p.Table()
	names := 0
	check := func(name string) {
		names++
		for _, r := range name {
			if !(r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z') {
				t.Errorf("name %q", name)
			}
		}
	}
	for name := range table.V4.Sets {
		check(name)
	}
	for name := range table.V4.Chains {
		check(name)
	}
	if names != 5+1+5+1 {
		t.Errorf("%d names", names)
	}
}

// Forms of addresses that the API accepted once; what cannot be parsed allows nothing.
func TestBlocks(t *testing.T) {
	for _, test := range []struct {
		cidr   string
		except []string
		yes    []string
		no     []string
	}{
		{"010.000.00.0/8", nil, []string{"10.0.0.0", "10.255.255.255"}, []string{"8.0.0.1", "11.0.0.0"}},
		{"::ffff:10.0.0.0/104", nil, []string{"10.1.2.3"}, []string{"11.0.0.1"}},
		{"10.1.2.3/8", nil, []string{"10.200.0.1"}, nil}, // bits after the prefix are ignored
		{"10.0.0.0/8", []string{"::ffff:10.1.0.0/112", "010.2.0.0/16"}, []string{"10.3.0.1"},
			[]string{"10.1.0.9", "10.2.255.255"}},
		{"10.0.0.0/30", []string{"10.0.0.0/30"}, nil, []string{"10.0.0.0", "10.0.0.3"}},
		{"0.0.0.0/0", []string{"0.0.0.0/1", "128.0.0.0/1"}, nil, []string{"0.0.0.0", "255.255.255.255", "127.0.0.1"}},
		{"0.0.0.0/0", []string{"255.255.255.255/32", "0.0.0.0/32"}, []string{"0.0.0.1", "255.255.255.254"},
			[]string{"0.0.0.0", "255.255.255.255"}},
		{"10.0.0.0/8", []string{"nonsense"}, nil, []string{"10.0.0.1"}},
		{"nonsense", nil, nil, []string{"10.0.0.1"}},
		{"10.0.0.0/8", []string{"fd00::/64"}, []string{"10.0.0.1"}, nil},
	} {
		p := policies.New()
		_ = p.SetPolicy(newPolicy("p", nil, networkingv1.NetworkPolicySpec{
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{IPBlock: &networkingv1.IPBlock{CIDR: test.cidr, Except: test.except}}}}}}))
		pod := netip.MustParseAddr("192.0.2.1")
		p.SetPod(policies.Pod{UID: "u", Namespace: "x", Here: true, Addresses: []netip.Addr{pod}})
		for want, list := range map[bool][]string{true: test.yes, false: test.no} {
			for _, a := range list {
				packet := policies.Packet{Src: netip.MustParseAddr(a), Dst: pod, Protocol: 6, Port: 1}
				if got := p.Allowed(packet); got != want {
					t.Errorf("%s except %v allows %s: %v", test.cidr, test.except, a, got)
				}
			}
		}
	}
}

// A selector that cannot be parsed isolates pods; the error names the policy.
func TestInvalidSelector(t *testing.T) {
	p := policies.New()
	bad := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	np := newPolicy("p", nil, networkingv1.NetworkPolicySpec{PodSelector: bad,
		Ingress: []networkingv1.NetworkPolicyIngressRule{
			{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &bad}}}}})
	if err := p.SetPolicy(np); err == nil {
		t.Error("no error")
	}
	p.SetPod(policies.Pod{UID: "u", Namespace: "x", Here: true, Addresses: []netip.Addr{address(1)}})
	if !p.Isolated("u") || p.Allowed(policies.Packet{Src: address(2), Dst: address(1), Protocol: 6, Port: 80}) {
		t.Error("open")
	}
	proto, port, end := corev1.Protocol("GRE"), intstr.FromInt32(90), int32(80)
	np = newPolicy("p", nil, networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{
		{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &proto}, {Port: &port, EndPort: &end}, {EndPort: &end}}}}})
	if err := p.SetPolicy(np); err != nil {
		t.Error(err)
	}
	for _, port := range []uint16{80, 85, 90} {
		if p.Allowed(policies.Packet{Src: address(2), Dst: address(1), Protocol: 6, Port: port}) {
			t.Errorf("port %d is open", port)
		}
	}
}
