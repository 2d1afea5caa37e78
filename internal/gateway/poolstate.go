package gateway

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	"carob/internal/core/explain"
	"carob/internal/core/httproute"
	"carob/internal/gateway/listing"
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
		state := listing.Pool(p.ref, p.served.plan, p.served.own)
		state.PickerEmpty = empty[p.ref]
		out = append(out, state)
	}
	slices.SortFunc(out, func(a, b explain.PoolState) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Group, b.Group))
	})
	return out
}
