package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"carob/internal/core/explain"
	"carob/internal/core/httproute"
)

// ServePools responds with the state of the InferencePools that are served (routeapi.PoolsPath), of one namespace or
// all.
func (g *Gateway) ServePools(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(g.PoolStates(r.URL.Query().Get("namespace"))) // the client has left
}

// PoolStates are the InferencePools that are served, by namespace, name, and group.
func (g *Gateway) PoolStates(namespace string) []explain.PoolState {
	out := []explain.PoolState{}
	g.mu.Lock()
	var all []ownPool
	empty := map[httproute.Ref]bool{}
	if g.plan != nil {
		for ref := range g.plan.Pools { // any order: sorted below
			if p, ok := g.pools.Get(ref); ok && (namespace == "" || ref.Namespace == namespace) {
				if s := p.served.Load(); s != nil {
					all = append(all, ownPool{ref, s})
					if picker := s.plan.Picker; picker != nil {
						of, _ := g.pools.Get(picker.Service)
						empty[ref] = of == nil || len(*of.endpoints.Load()) == 0
					}
				}
			}
		}
	}
	g.mu.Unlock()
	for _, p := range all {
		state := poolState(p)
		state.PickerEmpty = empty[p.ref]
		out = append(out, state)
	}
	slices.SortFunc(out, func(a, b explain.PoolState) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Group, b.Group))
	})
	return out
}

func poolState(p ownPool) explain.PoolState {
	out := explain.PoolState{Group: p.ref.Pool, Namespace: p.ref.Namespace, Name: p.ref.Name,
		Models: p.served.plan.Models.Names(), Shed: p.served.plan.Models.Sheds(),
		DrainProblem: p.served.plan.DrainProblem, PickerProblem: p.served.plan.PickerProblem,
		Unconfigured: p.served.plan.Unconfigured}
	if picker := p.served.plan.Picker; picker != nil {
		out.Picker = fmt.Sprintf("%s/%s:%d", picker.Service.Namespace, picker.Service.Name, picker.Service.Port)
		out.FailOpen = picker.FailOpen
	}
	if p.served.own == nil {
		return out
	}
	sums, servers := p.served.own.Statuses()
	out.Ready, out.Held, out.HeldBytes, out.Saturation = sums.Ready, sums.Held, sums.HeldBytes, sums.Saturation
	out.Requests, out.Waiting, out.Starting = sums.Requests, min(sums.Waiting, sums.Requests), sums.Starting
	out.TokenProblem, out.Refused = p.served.own.TokenProblem(), p.served.own.Refusals()
	for i := range servers {
		s := &servers[i]
		one := explain.Server{Name: s.Name(), Address: s.Endpoint.Address.String(), Engine: s.Engine,
			Waiting: s.Stats.Waiting, Running: s.Stats.Running, Cache: s.Stats.CacheUse, InFlight: s.InFlight,
			Adapters: slices.Concat(s.Stats.Active, s.Stats.Queued), Problem: s.Problem}
		if c := s.Cache; c != nil {
			one.Events = &explain.Events{Blocks: c.Blocks, Received: c.Received, Whole: c.Whole, Full: c.Full,
				Gaps: c.Gaps, Wrong: c.Wrong, Problem: s.CacheProblem}
		}
		if at := s.Stats.At; !at.IsZero() {
			one.Seen = &at
		}
		out.Servers = append(out.Servers, one)
	}
	return out
}
