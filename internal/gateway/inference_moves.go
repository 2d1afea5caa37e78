package gateway

import (
	"context"
	"errors"

	"carob/internal/gateway/extproc"
	"carob/internal/inference"
)

// same reports whether two states of a pool have the same picker.
func (s *served) same(other *served) bool { return s.own == other.own && s.client == other.client }

// facts reads what carob's picker needs of the body, unless that was done while the body arrived.
func (q *inferring) facts() error {
	if !q.kept || q.served.own == nil {
		return nil // another picker reads the body itself
	}
	if text := q.prompt.Bytes(); len(text) > 0 && !q.scanned {
		q.scanned = true
		if err := q.scan.Scan(text); err != nil {
			return err
		}
		if err := q.scan.Close(); err != nil {
			return err
		}
	}
	if q.served.plan.Models.Rewrites() && !q.scan.Facts.HasModel {
		return errNoModel
	}
	return nil
}

// callOne calls the picker that the request has.
func (q *inferring) callOne(ctx context.Context) (*extproc.Answer, error) {
	if q.served.own != nil {
		return nil, q.pickOwn(ctx) // as long as the configuration allows
	}
	return q.callPicker(ctx)
}

// replaced reports whether the pool has another picker than the request.
func (q *inferring) replaced() bool {
	of, _ := q.site.pools.Get(q.backend.Ref)
	now := of.served.Load()
	return now != nil && !now.same(q.served)
}

// move gives a request whose picker has not decided the picker that the pool has now. It returns false if that is the
// same one, or if the picker has refused the request.
func (q *inferring) move(failed error) bool {
	refused, _ := errors.AsType[*inference.Refused](failed)
	if refused != nil || q.choice != nil || !q.replaced() {
		return false
	}
	if q.stream != nil {
		q.stream.Close()
		q.stream = nil
	}
	q.served.used()
	of, _ := q.site.pools.Get(q.backend.Ref)
	q.served, q.moved = of.use(), true
	q.changes, q.targets, q.parts = extproc.Change{}, nil, [3][]byte{q.prompt.Bytes()}
	return true
}
