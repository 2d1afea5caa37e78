package gateway

import (
	"context"
	"net/netip"

	"carob/internal/gateway/extproc"
)

// callPicker calls the pool's own picker by ext-proc. A picker that names only endpoints that are not there, such as a
// pod that has just begun to leave, is called once more, to choose among those that are there. If it does not decide in
// time, which is limited for both calls together, the pool's failure mode applies.
func (q *inferring) callPicker(ctx context.Context) (*extproc.Answer, error) {
	err := errNoEndpoints
	if q.served.client != nil {
		q.prompt.Lose() // the stream may send it later
		limited, cancel := context.WithTimeout(ctx, q.served.plan.Picker.Timeout)
		defer cancel()
		answer, absent, failed := q.callFor(limited, nil)
		if absent {
			if present := q.present(); len(present) > 0 {
				q.stream.Close()
				answer, _, failed = q.callFor(limited, present)
			}
		}
		if failed == nil {
			return answer, nil
		}
		err = failed
	}
	if !q.served.plan.Picker.FailOpen || ctx.Err() != nil {
		return nil, err
	}
	if q.stream != nil { // it has decided, for endpoints that are not there
		q.stream.Close()
		q.stream = nil
	}
	q.changes, q.parts[0] = extproc.Change{}, q.prompt.Bytes()
	return nil, q.choose(ctx)
}

// callFor calls the picker once, to choose among some endpoints; nil: among all. absent: it has named others only.
func (q *inferring) callFor(ctx context.Context, among []netip.AddrPort) (answer *extproc.Answer, absent bool,
	err error) {
	stream, picked, err := q.served.client.Pick(ctx, q.in, q.prompt.Bytes(), among)
	q.stream = stream
	if err != nil || picked.Answer != nil {
		return answerOf(picked), false, err
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

func answerOf(p *extproc.Picked) *extproc.Answer {
	if p == nil {
		return nil
	}
	return p.Answer
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
