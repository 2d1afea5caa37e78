package policy

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/netplan/policies"
)

// BenchmarkLabel changes one label of one pod of another node among n pods and n policies, 200 of which
// select a pod of this node: the group that the pod enters and leaves is a peer of one of them.
func BenchmarkLabel(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { bench(b, n) })
	}
}

func bench(b *testing.B, n int) {
	if os.Geteuid() != 0 {
		b.Skip("network namespaces need root")
	}
	runtime.LockOSThread() // the thread ends with the benchmark
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		b.Fatal(err)
	}
	e, err := New(Config{Table: table})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	e.synced = map[kind]bool{ofPolicies: true, ofPods: true, ofNamespaces: true}
	both := halves()
	defer closeAll(both)
	pod := func(i int, team string) policies.Pod {
		return policies.Pod{UID: fmt.Sprint(i), Namespace: "x", Here: i < 200,
			Labels:    map[string]string{"app": fmt.Sprint(i), "team": team},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}}
	}
	for i := range n {
		e.plan.SetPod(pod(i, "a"))
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint(i)}}
		np.Spec.PodSelector.MatchLabels = map[string]string{"app": fmt.Sprint(i)}
		np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint("b", i)}}}}}}
		_ = e.plan.SetPolicy(np)
	}
	if err := e.put(b.Context(), both); err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		i++
		e.plan.SetPod(pod(n-1, fmt.Sprint("b", i%50)))
		if err := e.put(b.Context(), both); err != nil {
			b.Fatal(err)
		}
	}
}

// A policy with very many blocks is one set of ranges; when it changes, the set is replaced in one transaction.
func TestManyBlocks(t *testing.T) {
	in(t, func(t *testing.T) {
		e, both := enforcer(t), halves()
		defer closeAll(both)
		np := deny("blocks")
		block := &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}
		const many = 60_000 // an object of the API has room for about as many
		for i := range many {
			block.Except = append(block.Except, fmt.Sprintf("11.%d.%d.0/25", i/256, i%256))
		}
		np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
			{From: []networkingv1.NetworkPolicyPeer{{IPBlock: block}}}}
		_ = e.plan.SetPolicy(np)
		e.plan.SetPod(policies.Pod{UID: "1", Namespace: "x", Here: true, Addresses: []netip.Addr{at(1)}})
		if err := e.put(t.Context(), both); err != nil {
			t.Fatal(err)
		}
		for _, s := range e.plan.Table().V4.Sets {
			if s.Kind == policies.AddressRanges && len(s.Elements) != many+1 {
				t.Errorf("%d ranges", len(s.Elements))
			}
		}
		np = np.DeepCopy()
		np.Spec.Ingress[0].From[0].IPBlock.Except = block.Except[:many/2]
		_ = e.plan.SetPolicy(np)
		if err := e.put(t.Context(), both); err != nil || both[0].wrong {
			t.Errorf("%v, refused: %v", err, both[0].wrong)
		}
	})
}

// A policy with many peers and many ports is written in one transaction, changed, and removed.
func TestManyPeersAndPorts(t *testing.T) {
	in(t, func(t *testing.T) {
		e, both := enforcer(t), halves()
		defer closeAll(both)
		np := deny("many")
		const many = 5_000
		var r networkingv1.NetworkPolicyIngressRule
		for i := range many {
			port := intstr.FromString(fmt.Sprint("p", i))
			r.Ports = append(r.Ports, networkingv1.NetworkPolicyPort{Port: &port})
			r.From = append(r.From, networkingv1.NetworkPolicyPeer{
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i)}}})
		}
		np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{r}
		e.plan.SetPod(policies.Pod{UID: "1", Namespace: "x", Here: true, Addresses: []netip.Addr{at(1)}})
		write := func(what string) {
			t.Helper()
			if err := e.put(t.Context(), both); err != nil || both[0].wrong {
				t.Errorf("%s: %v, refused: %v", what, err, both[0].wrong)
			}
			expectNoDrops(t, what)
		}
		_ = e.plan.SetPolicy(np)
		write("a new policy")
		np = np.DeepCopy()
		np.Spec.Ingress[0].Ports = r.Ports[:many/2]
		_ = e.plan.SetPolicy(np)
		write("half of the ports")
		_ = e.plan.SetPolicy(deny("other"))
		e.plan.DeletePolicy(np.Namespace, np.Name)
		write("without the policy")
	})
}

// expectNoDrops checks that the kernel dropped no notification: then the table would be written again, without an end.
func expectNoDrops(t *testing.T, when string) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		const protocol, drops = 1, 8
		f := strings.Fields(line)
		if len(f) > drops && f[protocol] == fmt.Sprint(unix.NETLINK_NETFILTER) && f[drops] != "0" {
			t.Errorf("%s: a socket lost messages: %s", when, line)
		}
	}
}
