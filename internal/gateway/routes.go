package gateway

import (
	"encoding/json"
	"net/http"

	"carob/internal/base/routeapi"
	"carob/internal/core/httproute"
	"carob/internal/gateway/listing"
)

// ServeRoutes responds with the served routes (routeapi).
func (g *Gateway) ServeRoutes(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(g.Routes(r.URL.Query().Get("namespace"))) // the client has left
}

// Routes returns the routes of a namespace, or all.
func (g *Gateway) Routes(namespace string) routeapi.List {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.plan == nil {
		return routeapi.List{Routes: []routeapi.Route{}}
	}
	l := &listing.Gateway{Plan: g.plan.Plan, Failed: g.failed, FailedUDP: g.failedUDP,
		Endpoints: func(of httproute.Ref) (out []string, known bool) {
			p, known := g.pools.Get(of)
			if known {
				for _, t := range *p.endpoints.Load() {
					out = append(out, t.Address.String())
				}
			}
			return out, known
		}}
	return l.Routes(namespace)
}
