// Package filewatch reports when the content of a file may have changed. Components that reload
// their configuration use it; it must never read the file itself.
package filewatch

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

const (
	// settle gives the writer time to finish the file.
	settle = 100 * time.Millisecond
	// every detects changes that the kernel does not report, such as a change of a link's target in
	// another directory.
	every = time.Minute
)

// Follow calls look at once, soon after each change of the file, and every minute, until ctx is
// done. If look returns a positive duration, it is called again after that time. Calls never
// overlap.
func Follow(ctx context.Context, file string, look func(context.Context) time.Duration) {
	log := klog.FromContext(ctx)
	// Watches the directory, because editors and mounted ConfigMaps replace the file.
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer w.Close()
		err = w.Add(filepath.Dir(file))
	} else {
		w = &fsnotify.Watcher{} // never receives
	}
	if err != nil {
		log.Error(err, "Cannot watch the file; it is checked every minute", "file", file)
	}
	next, tick := time.NewTimer(0), time.NewTicker(every)
	defer next.Stop()
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Events:
			next.Reset(settle)
			continue
		case err := <-w.Errors:
			log.V(2).Info("Changes of the file may be missed", "file", file, "err", err)
			next.Reset(settle)
			continue
		case <-next.C:
		case <-tick.C:
		}
		if again := look(ctx); again > 0 {
			next.Reset(again)
		}
	}
}
