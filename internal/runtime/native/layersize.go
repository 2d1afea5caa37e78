package native

import (
	"context"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// layerAge is how old the size of a writable layer may be in a scrape, as in containerd: the layer is walked for it.
const layerAge = 10 * time.Second

// layerSize is what a walk of a container's writable layer found.
type layerSize struct {
	mu   sync.Mutex // held during a walk: others wait for its result
	at   time.Time  // of the walk; zero: none yet
	used Usage
}

// recent is the size as it was at most layerAge ago. A walk that failed is tried again by the next call.
func (l *layerSize) recent(walk func() (Usage, error)) (Usage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.at.IsZero() && time.Since(l.at) < layerAge {
		return l.used, nil
	}
	used, err := walk()
	if err == nil {
		l.at, l.used = time.Now(), used
	}
	return used, err
}

// layerOf measures the writable layer of a container now, with the pod's files that count there.
func (r *Runtime) layerOf(ctx context.Context, c *container) (Usage, error) {
	d, err := r.cfg.Images.Usage(ctx, c.rec.ID)
	if err != nil {
		return Usage{}, err
	}
	own := r.podFiles(c)
	return Usage{Bytes: d.Bytes + own.Bytes, Inodes: d.Inodes + own.Inodes}, nil
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
