package bridge

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"

	"carob/internal/network"
)

// gate is a network.Gate that a test opens.
type gate struct {
	requests chan network.Place
	answer   chan error
	freed    []string
	adopted  []network.Place
	n        *Network
	held     map[string]bool // sandboxes whose addresses were still taken when they were freed
}

func (g *gate) Adopt(all []network.Place) { g.adopted = all }

func (g *gate) Admit(ctx context.Context, p network.Place) error {
	select {
	case g.requests <- p:
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-g.answer
}

func (g *gate) Free(sandbox string) {
	g.freed = append(g.freed, sandbox)
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	g.held[sandbox] = g.n.attached[sandbox] != nil
}

// A pod may send only after the gate has let it through; if it does not, nothing of the pod is left.
func TestPodSendsOnlyAfterAdmission(t *testing.T) {
	cfg := testConfig(t)
	g := &gate{requests: make(chan network.Place), answer: make(chan error), held: map[string]bool{}}
	cfg.Gate = g
	n := open(t, cfg)
	g.n = n
	pod := network.Pod{UID: "u1", Namespace: "x", Name: "web", SandboxID: "s1", Labels: map[string]string{"app": "web"}}
	attached := make(chan error)
	go func() {
		_, err := n.Attach(t.Context(), pod)
		attached <- err
	}()
	p := <-g.requests
	if p.UID != "u1" || p.Namespace != "x" || p.Name != "web" || p.SandboxID != "s1" || len(p.IPs) != 1 ||
		!maps.Equal(p.Labels, pod.Labels) {
		t.Errorf("asked for %+v", p)
	}
	if pins := pinned(t, n); len(pins) > 0 {
		t.Errorf("may send already: %v", pins)
	}
	g.answer <- errors.New("no rules")
	if err := <-attached; err == nil || !strings.Contains(err.Error(), "no rules") {
		t.Errorf("attached: %v", err)
	}
	if !slices.Equal(g.freed, []string{"s1"}) || !g.held["s1"] || len(n.attached) > 0 {
		t.Errorf("freed %v, while its address was taken: %v; %d attached", g.freed, g.held["s1"], len(n.attached))
	}
	go func() {
		_, err := n.Attach(t.Context(), pod)
		attached <- err
	}()
	p = <-g.requests
	g.answer <- nil
	if err := <-attached; err != nil {
		t.Fatal(err)
	}
	if pins := pinned(t, n); !slices.Equal(pins, p.IPs) {
		t.Errorf("may send from %v", pins)
	}
	// The next process passes the attached pods to the gate, before another pod can be attached.
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	next := &gate{held: map[string]bool{}}
	cfg.Gate = next
	n = open(t, cfg)
	next.n = n
	if len(next.adopted) != 1 || next.adopted[0].UID != "u1" || !slices.Equal(next.adopted[0].IPs, p.IPs) {
		t.Errorf("adopted %+v", next.adopted)
	}
	if err := n.Detach(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if !next.held["s1"] {
		t.Error("the address was free before the gate knew")
	}
}

// pinned are the addresses that pods may send from.
func pinned(t *testing.T, n *Network) []netip.Addr {
	t.Helper()
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	list, err := conn.GetSetElements(n.rules.pinTable().v4)
	if err != nil {
		t.Fatal(err)
	}
	var all []netip.Addr
	for _, e := range list {
		a, _ := netip.AddrFromSlice(e.Key[len(e.Key)-net.IPv4len:])
		all = append(all, a)
	}
	return all
}
