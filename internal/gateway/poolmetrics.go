package gateway

import (
	"cmp"
	"slices"
	"time"

	"carob/internal/base/externalmetrics"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
	"carob/internal/core/routing"
	"carob/internal/inference"
)

// measure provides the metrics of pools as external metrics while carob's picker serves one. The lock is held.
func (g *Gateway) measure(plan *gatewayplan.Plan) {
	on := false
	for _, p := range plan.Pools { // any order: one is enough
		on = on || p.Picker == nil
	}
	if g.cfg.Measured == nil || on == g.measured {
		return
	}
	if g.measured = on; on {
		g.cfg.Measured(poolMetrics{g})
	} else {
		g.cfg.Measured(nil)
	}
}

// ownPool is a pool that carob's picker serves.
type ownPool struct {
	ref    httproute.Ref
	served *served
}

// ownPools are the pools of a namespace (empty: of all) that carob's picker serves, by name. Of two versions with one
// name v1 counts.
func (g *Gateway) ownPools(namespace string) (out []ownPool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.plan == nil {
		return nil
	}
	for ref := range g.plan.Pools { // any order: sorted
		p, ok := g.pools.Get(ref)
		if !ok || namespace != "" && ref.Namespace != namespace {
			continue
		}
		if s := p.served.Load(); s != nil && s.own != nil {
			out = append(out, ownPool{ref, s})
		}
	}
	slices.SortFunc(out, func(a, b ownPool) int {
		older := func(p ownPool) int {
			if p.ref.Pool == inferenceapi.Group {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.ref.Namespace, b.ref.Namespace), cmp.Compare(a.ref.Name, b.ref.Name),
			older(a)-older(b))
	})
	return slices.CompactFunc(out, func(a, b ownPool) bool {
		return a.ref.Namespace == b.ref.Namespace && a.ref.Name == b.ref.Name
	})
}

// poolMetrics implements externalmetrics.Source: the metrics have the names of the inference extension, and the labels
// name (of the pool), namespace, and for some model_server_pod.
type poolMetrics struct{ g *Gateway }

// Names implements externalmetrics.Source.
func (poolMetrics) Names() []string { return routing.MeasureNames() }

// Values implements externalmetrics.Source.
func (m poolMetrics) Values(namespace, metric string,
	match func(map[string]string) bool) (out []externalmetrics.Value, ok bool) {
	if _, found := slices.BinarySearch(m.Names(), metric); !found {
		return nil, false
	}
	now := time.Now()
	for _, p := range m.g.ownPools(namespace) {
		labels := map[string]string{"name": p.ref.Name, "namespace": p.ref.Namespace}
		if metric == perServer {
			out = append(out, m.ofServers(p.served.own, metric, labels, match, now)...)
			continue
		}
		if !match(labels) {
			continue
		}
		all, _ := p.served.own.Measures(metric)
		for _, v := range all {
			out = append(out, externalmetrics.Value{Labels: labels, Value: v.Value, At: now})
		}
	}
	return out, true
}

// perServer is the metric that has a value for each server.
const perServer = "inference_pool_per_pod_queue_size"

func (poolMetrics) ofServers(own *inference.Pool, metric string, labels map[string]string,
	match func(map[string]string) bool, now time.Time) (out []externalmetrics.Value) {
	all, _ := own.Measures(metric)
	for _, v := range all {
		l := map[string]string{"name": labels["name"], "namespace": labels["namespace"], "model_server_pod": v.Server}
		if match(l) {
			out = append(out, externalmetrics.Value{Labels: l, Value: v.Value, At: now})
		}
	}
	return out
}
