package logs

import (
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollPeriod is used only if the kernel has no inotify instance left.
const pollPeriod = 500 * time.Millisecond

// watch announces changes around path until stop is closed.
func watch(path string, stop <-chan struct{}) <-chan struct{} {
	wake, dir := make(chan struct{}, 1), filepath.Dir(path)
	if followed.add(dir, wake) == nil {
		go func() {
			<-stop
			followed.remove(dir, wake)
		}()
		return wake
	}
	go func() {
		t := time.NewTicker(pollPeriod)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				announce(wake)
			}
		}
	}()
	return wake
}

func announce(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// followed are the logs that are followed. They share an inotify instance: the processes of a user have 128 of them
// together, on most machines, and clients follow the logs of all pods at once.
var followed followers

// followers are channels by the directory whose changes are announced to them.
type followers struct {
	mu   sync.Mutex
	w    *fsnotify.Watcher // nil: there are none
	dirs map[string]map[chan struct{}]struct{}
}

func (f *followers) add(dir string, wake chan struct{}) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.w == nil {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return err
		}
		f.w, f.dirs = w, map[string]map[chan struct{}]struct{}{}
		go f.follow(w)
	}
	if err := f.w.Add(dir); err != nil { // it may be another directory than that of an earlier follower
		f.end()
		return err
	}
	if f.dirs[dir] == nil {
		f.dirs[dir] = map[chan struct{}]struct{}{}
	}
	f.dirs[dir][wake] = struct{}{}
	return nil
}

func (f *followers) remove(dir string, wake chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.dirs[dir], wake)
	if len(f.dirs[dir]) == 0 {
		delete(f.dirs, dir)
		_ = f.w.Remove(dir) // it may be gone
	}
	f.end()
}

// end closes the instance if nobody follows a log. f.mu is held.
func (f *followers) end() {
	if len(f.dirs) == 0 {
		_ = f.w.Close() // nothing was written
		f.w = nil
	}
}

// follow announces what happens in the directories until the instance is closed.
func (f *followers) follow(w *fsnotify.Watcher) {
	for {
		select {
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			f.announce(filepath.Dir(e.Name), e.Name) // the directory may be the one that has changed
		case _, ok := <-w.Errors: // an overflow: something changed
			if !ok {
				return
			}
			f.announce(f.all()...)
		}
	}
}

// announce wakes the followers of directories.
func (f *followers) announce(dirs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, dir := range dirs {
		for wake := range f.dirs[dir] {
			announce(wake)
		}
	}
}

// all are the directories whose changes are announced.
func (f *followers) all() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.dirs)) // any order
}
