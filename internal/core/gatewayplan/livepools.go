package gatewayplan

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	"carob/internal/core/httproute"
)

// pools reads all pools again if one of them, of their pickers or of their models has changed (in is nil: none of
// their objects has), and adds the routes to which it makes a difference. Pools are few: the cost does not depend on
// the number of routes.
func (n *changing) pools(in *Inference, again map[routeID]bool) {
	if in == nil && !n.repool {
		return
	}
	if in != nil {
		n.World.Inference = in
	}
	n.repooled, n.out.Inference = true, n.World.Inference
	before := n.planner.pools
	n.readPools()
	// Namespaces with pools that routes plan otherwise, or whose names statuses of routes may suggest.
	spaces := map[string]bool{}
	for ref, now := range n.planner.pools { // any order: each by itself
		was := before[ref]
		if was == nil || !was.routedAs(now) {
			spaces[ref.Namespace] = true
		} else if was.same(now) {
			n.planner.pools[ref] = was
		}
		n.offer(ref, was, now)
	}
	for ref, was := range before { // any order: each by itself
		if n.planner.pools[ref] == nil {
			spaces[ref.Namespace] = true
			n.offer(ref, was, nil)
		}
	}
	for space := range spaces { // any order: into a set
		maps.Copy(again, n.pooling[space])
	}
}

// routedAs reports whether routes to two versions of a pool are planned alike.
func (p *Pool) routedAs(now *Pool) bool {
	return p.unresolved == now.unresolved && p.H2C == now.H2C && p.policy == now.policy &&
		equality.Semantic.DeepEqual(p.Picker, now.Picker)
}

// same reports whether two versions of a pool are served alike, and have the same status.
func (p *Pool) same(now *Pool) bool {
	return p.routedAs(now) && p.Ref == now.Ref && p.Generation == now.Generation &&
		maps.Equal(p.Selector, now.Selector) && slices.Equal(p.Ports, now.Ports) && p.Models.Same(now.Models) &&
		p.Config == now.Config && p.Broken == now.Broken && p.problem == now.problem && p.old == now.old &&
		equality.Semantic.DeepEqual(p.Drain, now.Drain) && p.DrainProblem == now.DrainProblem &&
		p.PickerProblem == now.PickerProblem && p.Unconfigured == now.Unconfigured &&
		p.OfferedAs == now.OfferedAs
}

// offer counts a pool that is offered to other gateways, or no longer.
func (n *changing) offer(ref httproute.Ref, was, now *Pool) {
	before, after := n.offers(was), n.offers(now)
	if before == after {
		return
	}
	n.note(ref)
	if after {
		n.refer(ref, 1)
	} else {
		n.refer(ref, -1)
	}
}

// poolStatuses finds the pools that are served now, and plans the statuses of all.
func (n *changing) poolStatuses() {
	if !n.repooled {
		return
	}
	before, statuses := n.Plan.Pools, n.PoolStatus
	n.Plan.Pools = n.servedPools()
	for ref, pool := range n.Plan.Pools { // any order: into a set
		if before[ref] != pool {
			n.out.Pools[ref] = true
		}
	}
	for ref := range before { // any order: into a set
		if n.Plan.Pools[ref] == nil {
			n.out.Pools[ref] = true
		}
	}
	if n.poolStatus(); !equality.Semantic.DeepEqual(statuses, n.PoolStatus) {
		n.out.Inference = n.World.Inference
	}
}
