package images

import (
	"context"
	"sync"

	"k8s.io/klog/v2"

	"carob/internal/base/removetree"
)

// leftovers removes layers that nothing uses any more while the store is in use: containers can write millions of
// files. What is left when the store is closed is removed after the next Open.
type leftovers struct {
	ctx  context.Context //nolint:containedctx // ends when the store is closed
	stop context.CancelFunc
	tree func(ctx context.Context, path string) error
	done sync.WaitGroup
}

func newLeftovers(cfg Config) *leftovers {
	l := &leftovers{tree: cfg.removeTree}
	if l.tree == nil {
		l.tree = removetree.While
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// remove starts the removal of directories. The store is not being closed.
func (l *leftovers) remove(dirs ...string) {
	if len(dirs) == 0 {
		return
	}
	l.done.Go(func() {
		for _, dir := range dirs {
			if err := l.tree(l.ctx, dir); err != nil && l.ctx.Err() == nil { // files may be immutable (chattr +i)
				klog.Background().Error(err, "Files of a container that is gone cannot be removed")
			}
		}
	})
}

// close stops the removal.
func (l *leftovers) close() {
	l.stop()
	l.done.Wait()
}
