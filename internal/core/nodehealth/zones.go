package nodehealth

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/topology"
)

// Rates limit how many nodes per second get a NoExecute taint, in each zone (L7.164).
type Rates struct {
	Normal    float64 // nodes per second
	Secondary float64 // nodes per second, in a large zone that is partly down
	Large     int     // a zone with more nodes than this is large; in a smaller one that is partly down: none
	Unhealthy float64 // the part of a zone's nodes from which on it is partly down
}

// DefaultRates are upstream's.
func DefaultRates() Rates { return Rates{Normal: 0.1, Secondary: 0.01, Large: 50, Unhealthy: 0.55} }

// fewUnhealthy is how many nodes that are not ready never make a zone partly down.
const fewUnhealthy = 2

// Zone counts the nodes of a zone. Nodes with the label node.kubernetes.io/exclude-disruption do not count.
type Zone struct{ Nodes, Unhealthy int }

// down reports whether no node of the zone is ready.
func (z Zone) down() bool { return z.Nodes > 0 && z.Unhealthy == z.Nodes }

// rate returns the zone's limit. A zone without a ready node has the normal one: its nodes are
// probably lost, and the others can take over.
func (r Rates) rate(z Zone) float64 {
	switch {
	case z.down() || z.Unhealthy <= fewUnhealthy || float64(z.Unhealthy)/float64(z.Nodes) < r.Unhealthy:
		return r.Normal
	case z.Nodes > r.Large:
		return r.Secondary
	default:
		return 0
	}
}

// ZoneOf returns the name of a node's zone; empty if it is in none.
func ZoneOf(node *corev1.Node) string { return topology.GetZoneKey(node) }

// Pacer decides when a node that is not ready gets its NoExecute taint: in each zone one after the
// other, in the order of their requests, and no faster than Rates. While no node of the cluster is
// ready, none does: then the control plane is probably cut off. Make it with NewPacer.
type Pacer struct {
	rates   Rates
	zones   map[string]*paced
	nodes   map[string]member
	allDown bool
}

type paced struct {
	Zone
	rate    float64
	free    time.Time // when the next node may get its taint, if rate is not 0
	waiting []string  // nodes, in the order of their requests
}

type member struct {
	zone    string // where the node is counted, or waits
	counted bool
	ready   bool
	allowed bool // it may have its taint
}

// NewPacer returns a pacer without nodes.
func NewPacer(r Rates) *Pacer {
	return &Pacer{rates: r, zones: map[string]*paced{}, nodes: map[string]member{}}
}

// AllDown reports whether nodes are known and none of them is ready.
func (p *Pacer) AllDown() bool { return p.allDown }

// Zones returns what is known about each zone.
func (p *Pacer) Zones() map[string]Zone {
	all := make(map[string]Zone, len(p.zones))
	for name, z := range p.zones { // any order: a map becomes a map
		all[name] = z.Zone
	}
	return all
}

// Outcome lists the nodes that a change affects.
type Outcome struct {
	Again []string // waiting nodes for which Ask must be called again: they may get their taint earlier
	// AllDownChanged: no node is ready any more, or one is again. Then Decide must run for every node.
	AllDownChanged bool
}

const excluded = "node.kubernetes.io/exclude-disruption"

// Observe records the stored state of a node.
func (p *Pacer) Observe(now time.Time, node *corev1.Node) Outcome {
	ready := find(node.Status.Conditions, corev1.NodeReady)
	_, out := node.Labels[excluded]
	m := member{zone: ZoneOf(node), counted: !out, ready: ready != nil && ready.Status == corev1.ConditionTrue}
	old, known := p.nodes[node.Name]
	if known && m.zone == old.zone {
		m.allowed = old.allowed
	}
	if known && m == old {
		return Outcome{}
	}
	var again []string
	if known && m.zone != old.zone {
		again = p.leave(old.zone, node.Name)
	}
	p.count(old, -1)
	p.count(m, 1)
	p.nodes[node.Name] = m
	return p.settle(now, again)
}

// Remove removes a node.
func (p *Pacer) Remove(now time.Time, node string) Outcome {
	old, known := p.nodes[node]
	if !known {
		return Outcome{}
	}
	again := p.leave(old.zone, node)
	p.count(old, -1)
	delete(p.nodes, node)
	return p.settle(now, again)
}

// count adds n times the node to its zone.
func (p *Pacer) count(m member, n int) {
	if !m.counted {
		return
	}
	z := p.zone(m.zone)
	z.Nodes += n
	if !m.ready {
		z.Unhealthy += n
	}
}

func (p *Pacer) zone(name string) *paced {
	z := p.zones[name]
	if z == nil {
		z = &paced{rate: p.rates.Normal}
		p.zones[name] = z
	}
	return z
}

// settle applies the counts to the rates.
func (p *Pacer) settle(now time.Time, again []string) Outcome {
	some, all := false, true
	for name, z := range p.zones { // any order: each zone for itself, and sums
		if z.Nodes == 0 && len(z.waiting) == 0 && !now.Before(z.free) {
			delete(p.zones, name)
			continue
		}
		some = some || z.Nodes > 0
		all = all && (z.Nodes == 0 || z.down())
	}
	out := Outcome{Again: again, AllDownChanged: p.allDown != (some && all)}
	p.allDown = some && all
	for _, z := range p.zones { // in any order: the result is sorted
		rate := p.rates.rate(z.Zone)
		if p.allDown {
			rate = 0
		}
		if rate == z.rate {
			continue
		}
		// After a pause or while it waits, a zone begins with a full interval, as upstream.
		switch {
		case rate == 0:
		case z.rate == 0 || now.Before(z.free):
			z.free = now.Add(every(rate))
		}
		z.rate = rate
		out.Again = append(out.Again, z.waiting...)
	}
	slices.Sort(out.Again)
	out.Again = slices.Compact(out.Again)
	return out
}

func every(rate float64) time.Duration { return time.Duration(float64(time.Second) / rate) }

// Allow reports whether a node that was observed may get its taint. If not, next is when to call Ask
// again; zero if an Outcome will name the node. The permission lasts until Forget.
func (p *Pacer) Allow(now time.Time, node string) (may bool, next time.Time) {
	m, known := p.nodes[node]
	if !known {
		return false, time.Time{}
	}
	if m.allowed {
		return true, time.Time{}
	}
	z := p.zone(m.zone)
	at := slices.Index(z.waiting, node)
	if at < 0 {
		at = len(z.waiting)
		z.waiting = append(z.waiting, node)
	}
	switch {
	case z.rate == 0:
		return false, time.Time{}
	case at > 0 || now.Before(z.free):
		first := z.free
		if first.Before(now) {
			first = now
		}
		return false, first.Add(time.Duration(at) * every(z.rate))
	}
	z.waiting = z.waiting[1:]
	z.free = now.Add(every(z.rate))
	m.allowed = true
	p.nodes[node] = m
	return true, time.Time{}
}

// Forget removes a node that needs no taint, or has it. Ask must be called again for the returned
// nodes: they may get their taint earlier.
func (p *Pacer) Forget(node string) []string {
	m, known := p.nodes[node]
	if !known {
		return nil
	}
	if m.allowed {
		m.allowed = false
		p.nodes[node] = m
	}
	return p.leave(m.zone, node)
}

// leave removes a node from the queue of a zone, and returns the nodes behind it.
func (p *Pacer) leave(zone, node string) []string {
	z := p.zones[zone]
	if z == nil {
		return nil
	}
	at := slices.Index(z.waiting, node)
	if at < 0 {
		return nil
	}
	z.waiting = slices.Delete(z.waiting, at, at+1)
	return slices.Clone(z.waiting[at:])
}
