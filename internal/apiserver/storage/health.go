package storage

import (
	"context"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage/etcd3/metrics"

	"carob/internal/base/errkind"
)

const (
	// An external cluster that does not answer within this time is unavailable.
	healthTimeout = 2 * time.Second
	// How long a result is cached: anybody may request the API server's health.
	healthLife = time.Second
)

// health is the last result of an external cluster.
type health struct {
	mu      sync.Mutex
	checked time.Time
	err     error
}

// Check returns why objects cannot be read and written now; nil if they can. It sends a request to
// an external cluster at most once a second (kind Unavailable if there is no answer), and only
// checks the state of an embedded one.
func (e *Engine) Check(ctx context.Context) error {
	if e.server != nil {
		if err := e.Err(); err != nil {
			return err
		}
		return fullError(e.server)
	}
	h := &e.health
	h.mu.Lock() // callers meanwhile get the same result
	defer h.mu.Unlock()
	if !h.checked.IsZero() && time.Since(h.checked) < healthLife {
		return h.err
	}
	limited, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	_, err := e.Client.KV.Get(limited, "health") // a linearizable read: it needs a quorum
	if ctx.Err() != nil {
		return ctx.Err() // the caller has gone: nothing is known
	}
	if err != nil {
		err = errkind.Errorf(errkind.Unavailable, "etcd at %s does not answer: %w", e.endpoints(), err)
	}
	h.checked, h.err = time.Now(), err
	return err
}

// Size is how many bytes the database has on disk.
func (e *Engine) Size(ctx context.Context) (int64, error) {
	if e.server != nil {
		return e.server.Backend().Size(), nil
	}
	s, err := e.Client.Status(ctx, e.Client.Endpoints()[0])
	if err != nil {
		return 0, errkind.Errorf(errkind.Unavailable, "query the size of etcd at %s: %w", e.endpoints(), err)
	}
	return s.DbSize, nil
}

// Monitor reports the size of the database to the library's metrics.
type Monitor struct{ *Engine }

// Monitor implements metrics.Monitor.
func (m Monitor) Monitor(ctx context.Context) (metrics.StorageMetrics, error) {
	n, err := m.Size(ctx)
	return metrics.StorageMetrics{Size: n}, err
}

// Close implements metrics.Monitor; the opener of the engine closes it.
func (Monitor) Close() error { return nil }
