// Package filewatch tells when the content of a file may have changed. Who owns a
// configuration that is taken up while carob runs drives it; it must never read
// the file itself.
package filewatch

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

const (
	// settle lets who writes the file finish it.
	settle = 100 * time.Millisecond
	// every finds changes that the kernel does not tell of, such as those of a
	// link's target in another directory.
	every = time.Minute
)

// Follow calls look at once, soon after each change of the file, and each minute,
// until ctx ends; look asks by a positive answer to be called again after that
// time. It is never called twice at a time.
func Follow(ctx context.Context, file string, look func(context.Context) time.Duration) {
	log := klog.FromContext(ctx)
	// The directory: editors and mounted ConfigMaps replace the file.
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer w.Close()
		err = w.Add(filepath.Dir(file))
	} else {
		w = &fsnotify.Watcher{} // never has an event
	}
	if err != nil {
		log.Error(err, "The file can't be watched, it is looked at each minute", "file", file)
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
			log.V(2).Info("Changes of the file may be lost", "file", file, "err", err)
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
