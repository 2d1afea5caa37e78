package gateway

import (
	"context"
	"net/netip"

	"carob/internal/gateway/extproc"
)

// callPicker calls the pool's own picker by ext-proc. If it does not decide in time, which is limited for all calls
// together, the pool's failure mode applies, unless the pool has another picker now.
func (q *inferring) callPicker(ctx context.Context) (*extproc.Answer, error) {
	err := errNoEndpoints
	if q.served.client != nil {
		q.prompt.Lose() // the stream may send it later
		limited, cancel := context.WithTimeout(ctx, q.served.plan.Picker.Timeout)
		defer cancel()
		var answer *extproc.Answer
		if answer, err = q.callWithin(limited); err == nil {
			return answer, nil
		}
	}
	if !q.served.plan.Picker.FailOpen || ctx.Err() != nil || q.replaced() {
		return nil, err
	}
	if q.stream != nil { // it has decided, for endpoints that are not there
		q.stream.Close()
		q.stream = nil
	}
	q.changes, q.parts[0] = extproc.Change{}, q.prompt.Bytes()
	return nil, q.choose(ctx)
}

// callWithin calls the picker until ctx ends: once more if it has ended meanwhile (another server of it may be there),
// and once more if it names only endpoints that are not there, such as a pod that has just begun to leave, to choose
// among those that are. A request that another picker has held waits until this one is connected.
func (q *inferring) callWithin(ctx context.Context) (*extproc.Answer, error) {
	if q.moved {
		if err := q.served.client.Connected(ctx); err != nil {
			return nil, err
		}
	}
	answer, absent, err := q.callFor(ctx, nil)
	if extproc.Lost(err) {
		answer, absent, err = q.callFor(ctx, nil)
	}
	if absent {
		if present := q.present(); len(present) > 0 {
			q.stream.Close()
			answer, _, err = q.callFor(ctx, present)
		}
	}
	return answer, err
}

// callFor calls the picker once, to choose among some endpoints; nil: among all. absent: it has named others only.
func (q *inferring) callFor(ctx context.Context, among []netip.AddrPort) (answer *extproc.Answer, absent bool,
	err error) {
	stream, picked, err := q.served.client.Pick(ctx, q.in, q.prompt.Bytes(), among)
	q.stream = stream
	if err != nil {
		return nil, false, err
	}
	if picked.Answer != nil {
		return picked.Answer, false, nil
	}
	q.changes, q.parts[0] = picked.Headers, q.prompt.Bytes()
	if picked.Body != nil {
		q.parts[0] = picked.Body
	}
	// Only endpoints of the pool: a picker must not send requests anywhere else.
	if q.targets = q.known(picked.Endpoints); len(q.targets) > 0 {
		return nil, false, nil
	}
	return nil, len(picked.Endpoints) > 0, errNoEndpoints
}

// present are the endpoints of the pool.
func (q *inferring) present() (out []netip.AddrPort) {
	of, _ := q.site.pools.Get(q.backend.Ref)
	for _, t := range *of.endpoints.Load() {
		out = append(out, t.Address)
	}
	return out
}

// known are the targets with the given addresses, in the same order.
func (q *inferring) known(at []netip.AddrPort) (out []*Target) {
	of, _ := q.site.pools.Get(q.backend.Ref)
	all := *of.endpoints.Load()
	for _, addr := range at {
		for _, t := range all {
			if t.Address == addr {
				out = append(out, t)
				break
			}
		}
	}
	return out
}
