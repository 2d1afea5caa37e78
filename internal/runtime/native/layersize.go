package native

import (
	"context"
	"errors"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// layerAge is how old the size of a writable layer may be in a scrape, as in containerd: the layer is walked for it.
const layerAge = 10 * time.Second

// A container can make the walk of its layer last for minutes, with millions of files, and a disk that does not respond
// makes it last for ever. So layers are walked in the background.
const (
	// layerPatience is how long statistics wait for the walks of all layers.
	layerPatience = time.Second
	// layerQuick is how long the walk of a layer may take that is walked whenever its size is requested.
	layerQuick = 100 * time.Millisecond
	// Other layers are walked during this part of the time, but not less often than after layerOldest.
	layerShare  = 10
	layerOldest = 5 * time.Minute
)

// errNotMeasured is the error of a layer whose first walk has not ended.
var errNotMeasured = errors.New("the writable layer is still being measured")

// layerSize is what walks of a container's writable layer found.
type layerSize struct {
	mu   sync.Mutex
	at   time.Time     // end of the last walk that succeeded; zero: none
	took time.Duration // of it
	used Usage
	err  error // of the last walk

	walking chan struct{} // closed when the walk in progress ends; nil: none is
	began   time.Time     // of that walk
}

// measure returns the size as it was at most age ago, if that is known before ctx ends; otherwise the last one that is
// known. A walk that failed is tried again by the next call.
func (l *layerSize) measure(ctx context.Context, age time.Duration, walk func(context.Context) (Usage, error)) (Usage,
	error) {
	l.mu.Lock()
	if l.took > layerQuick {
		age = max(age, min(layerShare*l.took, layerOldest))
	}
	if l.walking == nil && (age == 0 || l.at.IsZero() || time.Since(l.at) >= age) {
		l.walking, l.began = make(chan struct{}), time.Now()
		go l.walk(context.WithoutCancel(ctx), l.walking, walk)
	}
	walking, slow := l.walking, l.took > layerQuick || time.Since(l.began) >= layerPatience
	l.mu.Unlock()
	if walking != nil && !slow {
		select {
		case <-walking:
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.at.IsZero():
		return l.used, nil
	case l.err != nil:
		return Usage{}, l.err
	}
	return Usage{}, errNotMeasured
}

func (l *layerSize) walk(ctx context.Context, ended chan struct{}, walk func(context.Context) (Usage, error)) {
	used, err := walk(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err = err; err == nil {
		l.at, l.used = time.Now(), used
		l.took = l.at.Sub(l.began)
	}
	l.walking = nil
	close(ended)
}

// layerOf returns the size of the writable layer of a container, with the pod's files that count there.
func (r *Runtime) layerOf(ctx context.Context, c *container, age time.Duration) (Usage, error) {
	return c.layer.measure(ctx, age, func(ctx context.Context) (Usage, error) {
		d, err := r.cfg.Images.Usage(ctx, c.rec.ID)
		if err != nil {
			return Usage{}, err
		}
		own := r.podFiles(c)
		return Usage{Bytes: d.Bytes + own.Bytes, Inodes: d.Inodes + own.Inodes}, nil
	})
}

// layerStats are CRI's statistics of a layer; nil if it could not be measured.
func (r *Runtime) layerStats(u Usage, err error) *cri.FilesystemUsage {
	if err != nil {
		return nil
	}
	return &cri.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &cri.FilesystemIdentifier{Mountpoint: r.cfg.RootDir},
		UsedBytes: value(uint64(u.Bytes)), InodesUsed: value(uint64(u.Inodes)),
	}
}
