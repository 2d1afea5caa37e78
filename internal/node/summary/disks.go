package summary

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/base/diskusage"
)

// How often something on a disk is measured, at most, and how long others wait for it.
const (
	volumePeriod = time.Minute      // as kubelets
	filePeriod   = 10 * time.Second // of logs and of whole file systems
	// patience is how long a request waits for measurements.
	patience = time.Second
	// slow is how long a measurement may take until the next one begins beside it: a disk that does not respond must
	// not keep others from being measured.
	slow = 2 * time.Second
	// longest ends the measurement of a directory; what is in it is then not known.
	longest = time.Minute
)

// measurement is something on a disk that can be measured.
type measurement struct {
	key    string
	period time.Duration
	// measure returns nothing if it failed. It may block for ever.
	measure func(ctx context.Context) []Fs
}

// disks measures in the background, one after the other, while clients request it.
type disks struct {
	ctx  context.Context // ends with the server
	slow time.Duration

	mu    sync.Mutex
	known map[string]*measured
	round chan struct{} // closed when the round ends; nil: none is in progress
}

// measured is what is known of a measurement.
type measured struct {
	at      time.Time // when it was last begun
	running bool
	found   []Fs
}

// read begins the measurements that are due, waits for them until ctx ends, and returns what is known. What is not in
// list is forgotten.
func (d *disks) read(ctx context.Context, list []measurement) map[string][]Fs {
	d.mu.Lock()
	if d.known == nil {
		d.known = map[string]*measured{}
	}
	wanted := make(map[string]bool, len(list))
	var due []measurement
	for _, m := range list {
		wanted[m.key] = true
		if k := d.known[m.key]; k == nil || !k.running && time.Since(k.at) >= m.period {
			due = append(due, m)
		}
	}
	for key, k := range d.known { // any order: each by itself
		if !wanted[key] && !k.running {
			delete(d.known, key)
		}
	}
	if d.round == nil && len(due) > 0 && d.ctx.Err() == nil {
		for i := range due {
			if d.known[due[i].key] == nil {
				d.known[due[i].key] = &measured{}
			}
		}
		d.round = make(chan struct{})
		go d.measureAll(due, d.round)
	}
	round := d.round
	d.mu.Unlock()
	if round != nil {
		select {
		case <-round:
		case <-ctx.Done():
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string][]Fs, len(list))
	for key, k := range d.known {
		if k.found != nil && wanted[key] {
			out[key] = k.found
		}
	}
	return out
}

// measureAll is a round. A measurement that is slow continues beside the others.
func (d *disks) measureAll(list []measurement, round chan struct{}) {
	for i := range list {
		if d.ctx.Err() != nil {
			break
		}
		done := d.begin(&list[i])
		timer := time.NewTimer(d.slow)
		select {
		case <-done:
		case <-timer.C:
		case <-d.ctx.Done():
		}
		timer.Stop()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.round = nil
	close(round)
}

// begin measures in a goroutine of its own; done is closed when it has ended.
func (d *disks) begin(m *measurement) (done chan struct{}) {
	done = make(chan struct{})
	d.mu.Lock()
	k := d.known[m.key]
	if k == nil { // forgotten meanwhile
		k = &measured{}
		d.known[m.key] = k
	}
	k.at, k.running = time.Now(), true
	d.mu.Unlock()
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(d.ctx, longest)
		defer cancel()
		found := m.measure(ctx)
		d.mu.Lock()
		defer d.mu.Unlock()
		k.running, k.found = false, found
	}()
	return done
}

// fileSystem is the state of the file system of a path.
func fileSystem(path string) []Fs {
	var st unix.Statfs_t
	if path == "" || unix.Statfs(path, &st) != nil {
		return nil
	}
	size := uint64(st.Bsize)
	available, capacity, used := st.Bavail*size, st.Blocks*size, (st.Blocks-st.Bfree)*size
	free, inodes, inodesUsed := st.Ffree, st.Files, st.Files-st.Ffree
	return []Fs{{Time: time.Now(), AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used,
		InodesFree: &free, Inodes: &inodes, InodesUsed: &inodesUsed}}
}

// directory is the state of the file system of a directory, of which used is what is in the directory.
func directory(ctx context.Context, dir string) []Fs {
	used, err := diskusage.Of(ctx, dir)
	if err != nil {
		return nil
	}
	found := fileSystem(dir)
	if found == nil {
		return nil
	}
	bytes, inodes := uint64(max(used.Bytes, 0)), uint64(max(used.Inodes, 0))
	found[0].UsedBytes, found[0].InodesUsed = &bytes, &inodes
	return found
}

// blockDevice has only a size (S12.60).
func blockDevice(path string) []Fs {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size < 0 {
		return nil
	}
	capacity := uint64(size)
	return []Fs{{Time: time.Now(), CapacityBytes: &capacity}}
}
