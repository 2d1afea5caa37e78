package storage

import (
	"context"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage/etcd3/metrics"

	"carob/internal/base/errkind"
)

const (
	// An external cluster that does not answer in that time is away.
	healthTimeout = 2 * time.Second
	// An answer is good for so long: anybody may ask the API server for its health.
	healthLife = time.Second
)

// health is what an external cluster answered last.
type health struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

// Check says why objects can't be read and written now; nil when they can. It
// asks an external cluster, at most once a second (kind Unavailable when that
// does not answer), and only looks at an embedded one.
func (e *Engine) Check(ctx context.Context) error {
	if e.server != nil {
		if err := e.Err(); err != nil {
			return err
		}
		return fullError(e.server)
	}
	h := &e.health
	h.mu.Lock() // who comes meanwhile gets the same answer
	defer h.mu.Unlock()
	if !h.asked.IsZero() && time.Since(h.asked) < healthLife {
		return h.err
	}
	ask, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	_, err := e.Client.KV.Get(ask, "health") // a linearizable read: it needs a quorum
	if ctx.Err() != nil {
		return ctx.Err() // the caller has gone: nothing is known
	}
	if err != nil {
		err = errkind.Errorf(errkind.Unavailable, "etcd at %s does not answer: %w", e.endpoints(), err)
	}
	h.asked, h.err = time.Now(), err
	return err
}

// Size is how many bytes the database has on disk.
func (e *Engine) Size(ctx context.Context) (int64, error) {
	if e.server != nil {
		return e.server.Backend().Size(), nil
	}
	s, err := e.Client.Status(ctx, e.Client.Endpoints()[0])
	if err != nil {
		return 0, errkind.Errorf(errkind.Unavailable, "ask etcd at %s for its size: %w", e.endpoints(), err)
	}
	return s.DbSize, nil
}

// Monitor tells the library's metrics how big the database is.
type Monitor struct{ *Engine }

// Monitor implements metrics.Monitor.
func (m Monitor) Monitor(ctx context.Context) (metrics.StorageMetrics, error) {
	n, err := m.Size(ctx)
	return metrics.StorageMetrics{Size: n}, err
}

// Close implements metrics.Monitor; the engine is closed by who opened it.
func (Monitor) Close() error { return nil }
