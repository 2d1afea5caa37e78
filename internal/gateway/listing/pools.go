package listing

import (
	"fmt"
	"slices"

	"carob/internal/core/explain"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/inference"
)

// Pool is the state of an InferencePool. own is carob's picker; nil: the pool has another one.
func Pool(ref httproute.Ref, plan *gatewayplan.Pool, own *inference.Pool) explain.PoolState {
	out := explain.PoolState{Group: ref.Pool, Namespace: ref.Namespace, Name: ref.Name,
		Models: plan.Models.Names(), Shed: plan.Models.Sheds(),
		DrainProblem: plan.DrainProblem, PickerProblem: plan.PickerProblem,
		Unconfigured: plan.Unconfigured}
	if picker := plan.Picker; picker != nil {
		out.Picker = fmt.Sprintf("%s/%s:%d", picker.Service.Namespace, picker.Service.Name, picker.Service.Port)
		out.FailOpen = picker.FailOpen
	}
	if own == nil {
		return out
	}
	sums, servers := own.Statuses()
	out.Ready, out.Held, out.HeldBytes, out.Saturation = sums.Ready, sums.Held, sums.HeldBytes, sums.Saturation
	out.Requests, out.Waiting, out.Starting = sums.Requests, min(sums.Waiting, sums.Requests), sums.Starting
	out.TokenProblem, out.Refused = own.TokenProblem(), own.Refusals()
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
