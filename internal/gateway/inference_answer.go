package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"carob/internal/core/routing"
	"carob/internal/gateway/extproc"
	"carob/internal/inference"
)

// followed sends the request to a target, and shows the answer to the pool's own picker.
func (q *inferring) followed(out *http.Request, t *Target, m mode) (*http.Response, error) {
	if q.stream == nil {
		return q.attempt(out, t, m)
	}
	ctx, cancel := context.WithCancel(out.Context())
	res, err := q.attempt(out.WithContext(ctx), t, m)
	if err != nil {
		cancel()
		return nil, err
	}
	err = q.stream.Answered(out.Context(), res, extproc.Following{Served: t.Address, Cancel: cancel,
		FailOpen: q.served.plan.Picker.FailOpen, Reserve: q.served.bodies.Reserve})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("%w: %w", errNoEndpoints, err) // 503
	}
	return res, nil //nolint:govet // the body's end cancels ctx, and so does the request's
}

// tokens is the body of an answer, whose tokens are counted.
type tokens struct {
	io.ReadCloser
	q *inferring
}

func (t *tokens) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if n > 0 && t.q.choice != nil {
		if !t.q.first {
			t.q.first = true
			t.q.choice.FirstByte()
		}
		t.q.usage.Write(p[:n])
	}
	if err != nil && t.q.choice != nil && t.q.in.Context().Err() == nil {
		switch {
		case !errors.Is(err, io.EOF):
			t.q.ended(routing.Failed)
		case t.q.usage.Bytes <= smallAnswer:
			t.q.complete = true // end follows
		default:
			t.q.ended(routing.Answered)
		}
	}
	return n, err
}

// smallAnswer is the size of an answer that does not wait for the client. Its end is recorded when it was sent: the
// client gets it first. That of a larger one is recorded before, because the client may be slow.
const smallAnswer = 16 << 10

// end ends the request, whatever its result.
func (q *inferring) end() {
	q.ended(q.outcome())
	if q.stream != nil {
		q.stream.Close()
	}
}

// outcome is the result of a request whose end was not recorded yet. A client that leaves when it has the whole answer
// was answered, as one with another protocol, whose end only the two sides understand.
func (q *inferring) outcome() routing.Outcome {
	switch {
	case q.complete, q.status == http.StatusSwitchingProtocols:
		return routing.Answered
	case q.in.Context().Err() != nil:
		return routing.Aborted
	}
	return routing.Failed
}

// ended reports the end to the picker, once.
func (q *inferring) ended(how routing.Outcome) {
	if q.choice == nil {
		return
	}
	q.over.Do(func() {
		u := q.usage.Usage()
		if q.rec != nil {
			l := &q.rec.inferred
			l.InputTokens, l.OutputTokens, l.CachedTokens = u.Input, u.Output, u.Cached
		}
		q.choice.End(inference.Result{Outcome: how, Status: q.status, AnswerBytes: q.usage.Bytes,
			InputTokens: u.Input, OutputTokens: u.Output, CachedTokens: u.Cached})
	})
}
