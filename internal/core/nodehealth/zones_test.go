package nodehealth

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// in returns a node of a zone.
func in(zone, name string, ready corev1.ConditionStatus) *corev1.Node {
	n := nodeWith(ready)
	n.Name, n.Labels = name, map[string]string{corev1.LabelTopologyZone: zone}
	return n
}

// A node that is not ready keeps its pods until eviction is permitted; one that evicts already changes only the
// key.
func TestDecideWithoutPermission(t *testing.T) { // L7.162, L7.164
	for name, test := range map[string]struct {
		node    *corev1.Node
		allDown bool
		waiting bool
		taints  []string
	}{
		"ready": {nodeWith(corev1.ConditionTrue), false, false, []string{}},
		"not ready": {nodeWith(corev1.ConditionFalse), false, true,
			[]string{"node.kubernetes.io/not-ready:NoSchedule"}},
		"all are down": {nodeWith(corev1.ConditionFalse), true, false,
			[]string{"node.kubernetes.io/not-ready:NoSchedule"}},
		"evicts already": {nodeWith(corev1.ConditionFalse, taint(corev1.TaintNodeUnreachable,
			corev1.TaintEffectNoExecute)), false, false,
			[]string{"node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute"}},
		"another NoExecute": {nodeWith(corev1.ConditionFalse, taint("mine", corev1.TaintEffectNoExecute)), false, true,
			[]string{"mine:NoExecute", "node.kubernetes.io/not-ready:NoSchedule"}},
	} {
		out := Decide(Input{Now: start(), Node: test.node, LastSeen: start(), AllDown: test.allDown})
		if out.Waiting != test.waiting || !slices.Equal(names(out.Taints), test.taints) {
			t.Errorf("%s: waiting %t, %v", name, out.Waiting, names(out.Taints))
		}
	}
}

// taintTimes takes nodes of zone z down one after the other within a moment and returns when each gets its taint.
func taintTimes(healthy, unhealthy int) []string {
	p, now := NewPacer(DefaultRates()), start()
	for i := range healthy + unhealthy {
		p.Observe(now, in("z", fmt.Sprint("n", i), corev1.ConditionTrue))
	}
	p.Observe(now, in("elsewhere", "other", corev1.ConditionTrue)) // so that never all are down
	for i := range unhealthy {
		p.Observe(now, in("z", fmt.Sprint("n", i), corev1.ConditionFalse))
	}
	var got []string
	due := map[string]time.Time{}
	for i := range unhealthy {
		due[fmt.Sprint("n", i)] = now
	}
	for range 4 * unhealthy {
		name := ""
		for n, at := range due {
			if name == "" || at.Before(due[name]) || at.Equal(due[name]) && n < name {
				name = n
			}
		}
		if name == "" {
			break
		}
		may, next := p.Allow(due[name], name)
		switch {
		case may:
			got = append(got, fmt.Sprint(name, "@", due[name].Sub(now)))
			delete(due, name)
		case next.IsZero():
			got = append(got, name+" never")
			delete(due, name)
		default:
			due[name] = next
		}
	}
	return got
}

func TestTaintRatePerZone(t *testing.T) { // L7.164
	for _, test := range []struct {
		name               string
		healthy, unhealthy int
		want               []string // the first three
	}{
		{"two of two: the zone is gone", 0, 2, []string{"n0@0s", "n1@10s"}},
		{"two of three are too few to stop", 1, 2, []string{"n0@0s", "n1@10s"}},
		{"three of five are too many", 2, 3, []string{"n0 never", "n1 never", "n2 never"}},
		{"three of six", 3, 3, []string{"n0@0s", "n1@10s", "n2@20s"}},
		{"28 of 50 are 56 %", 22, 28, []string{"n0 never", "n1 never", "n10 never"}},
		{"29 of 51: a large zone", 22, 29, []string{"n0@0s", "n1@1m40s", "n10@3m20s"}},
		{"28 of 51 are 54.9 %", 23, 28, []string{"n0@0s", "n1@10s", "n10@20s"}},
		{"60 of 60: the zone is gone", 0, 60, []string{"n0@0s", "n1@10s", "n10@20s"}},
	} {
		got := taintTimes(test.healthy, test.unhealthy)
		got = got[:min(3, len(got))]
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// plant calls a pacer only at the times that it returned, like a driver.
type plant struct {
	*Pacer
	now     time.Time
	nodes   map[string]*corev1.Node
	due     map[string]time.Time // when Ask is called again for a waiting node
	granted map[string]time.Time
	last    map[string]time.Time // of a grant, by zone
}

func (p *plant) heed(out Outcome) {
	for _, name := range out.Again {
		p.due[name] = p.now
	}
	if out.AllDownChanged {
		for name := range p.nodes {
			p.due[name] = p.now
		}
	}
}

// look processes a node like the driver.
func (p *plant) look(t *rapid.T, name string) {
	delete(p.due, name)
	n := p.nodes[name]
	if n == nil {
		return
	}
	out := Decide(Input{Now: p.now, Node: n, LastSeen: p.now, AllDown: p.AllDown()})
	if !out.Waiting {
		delete(p.granted, name)
		p.heed(Outcome{Again: p.Forget(name)})
		return
	}
	may, next := p.Allow(p.now, name)
	if _, already := p.granted[name]; already && !may {
		t.Fatalf("%s may no longer", name)
	} else if may && !already {
		zone := ZoneOf(n)
		if last, ok := p.last[zone]; ok && p.now.Sub(last) < 10*time.Second {
			t.Fatalf("%s only %v after another", name, p.now.Sub(last))
		}
		p.granted[name], p.last[zone] = p.now, p.now
	}
	if !next.IsZero() {
		if !next.After(p.now) {
			t.Fatalf("%s has its next Ask in the past", name)
		}
		p.due[name] = next
	}
}

func (p *plant) until(t *rapid.T, end time.Time) {
	for {
		name := ""
		for n, at := range p.due {
			if !at.After(end) && (name == "" || at.Before(p.due[name]) || at.Equal(p.due[name]) && n < name) {
				name = n
			}
		}
		if name == "" {
			p.now = end
			return
		}
		if p.due[name].After(p.now) {
			p.now = p.due[name]
		}
		p.look(t, name)
	}
}

// With nodes that are added, removed, moved and changed at random: in each zone, permissions are at least
// ten seconds apart, and a driver that calls Ask only at the returned times gets one for each node in a
// zone that has a rate.
func TestPacerPermitsEachNode(t *testing.T) { // L7.164
	rapid.Check(t, func(t *rapid.T) {
		p := &plant{Pacer: NewPacer(DefaultRates()), now: start(), nodes: map[string]*corev1.Node{},
			due: map[string]time.Time{}, granted: map[string]time.Time{}, last: map[string]time.Time{}}
		zones := []string{"a", "b"}
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			name := fmt.Sprint("n", rapid.IntRange(0, 7).Draw(t, "node"))
			if rapid.IntRange(0, 9).Draw(t, "gone") == 0 {
				delete(p.nodes, name)
				delete(p.granted, name)
				p.heed(p.Remove(p.now, name))
			} else {
				n := in(rapid.SampledFrom(zones).Draw(t, "zone"), name,
					rapid.SampledFrom([]corev1.ConditionStatus{"True", "True", "False", "Unknown"}).Draw(t, "ready"))
				if rapid.IntRange(0, 9).Draw(t, "excluded") == 0 {
					n.Labels[excluded] = ""
				}
				if old := p.nodes[name]; old != nil && ZoneOf(old) != ZoneOf(n) {
					delete(p.granted, name)
				}
				p.nodes[name] = n
				p.heed(p.Observe(p.now, n))
				p.due[name] = p.now
			}
			p.until(t, p.now.Add(time.Duration(rapid.IntRange(0, 15).Draw(t, "seconds"))*time.Second))
		}
		p.until(t, p.now.Add(100*time.Second))
		down := map[string]Zone{}
		for _, n := range p.nodes {
			if _, out := n.Labels[excluded]; !out {
				z := down[ZoneOf(n)]
				z.Nodes++
				if n.Status.Conditions[0].Status != corev1.ConditionTrue {
					z.Unhealthy++
				}
				down[ZoneOf(n)] = z
			}
		}
		none := len(down) > 0
		for zone, z := range down {
			if got := p.Zones()[zone]; got != z {
				t.Fatalf("zone %q: %+v, want %+v", zone, got, z)
			}
			none = none && z.down()
		}
		if p.AllDown() != none {
			t.Fatalf("all down: %t", p.AllDown())
		}
		for name, n := range p.nodes {
			unhealthy := n.Status.Conditions[0].Status != corev1.ConditionTrue
			_, granted := p.granted[name]
			want := unhealthy && !none && DefaultRates().rate(down[ZoneOf(n)]) > 0
			if granted != want && !(unhealthy && granted) {
				t.Fatalf("%s: permitted %t, want %t", name, granted, want)
			}
		}
	})
}
