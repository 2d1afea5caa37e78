// Package timeline stores the events of pods on this node, so that it is available after the pod is
// deleted and after a restart of carob. The node's parts record into Store; the agent's server
// mounts its Handler.
//
// The log is a sequence of segment files with one JSON entry per line. Its size is limited: the
// oldest segment is removed when there are too many. Entries are queued in memory and written
// together a moment later, without fsync, so recording does not slow a pod down; a crash of the
// machine may lose the last moment. It does no work while there are no entries. Recording must
// never block or fail its caller.
package timeline

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/base/journal"
)

// Limits are the limits of the log.
type Limits struct {
	Segment int64         // bytes after which a new file is started
	Files   int           // segments to keep, including the current one
	Buffer  int           // maximum number of queued entries; more are dropped
	Delay   time.Duration // from the first queued entry to the write
}

// Defaults keep 16 MiB, which is some hundred thousand entries, or thousands of pods.
func Defaults() Limits {
	return Limits{Segment: 2 << 20, Files: 8, Buffer: 1 << 16, Delay: 200 * time.Millisecond}
}

// Store is the log of one node. Create it with Open; it is safe for concurrent use.
type Store struct {
	dir    string
	limits Limits

	mu      sync.Mutex // guards the queue
	waiting []journal.Entry
	dropped int
	timer   *time.Timer // runs while entries are queued
	closed  bool

	followers map[*follower]struct{}

	io       sync.Mutex // guards the files; taken before mu
	file     *os.File   // current file; nil before the first write
	size     int64
	segments []uint64 // numbers of the existing files, ascending
	failing  bool     // the last write failed; do not log the next failure
}

var (
	_ journal.Recorder = (*Store)(nil)
	_ journal.Reader   = (*Store)(nil)
)

const suffix = ".jsonl"

// Open opens the log in dir, which is created if it is missing (0700).
func Open(dir string) (*Store, error) { return OpenLimited(dir, Defaults()) }

// OpenLimited is Open with other limits.
func OpenLimited(dir string, l Limits) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create timeline directory: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read timeline directory: %w", err)
	}
	s := &Store{dir: dir, limits: l}
	for _, f := range files {
		if number, ok := strings.CutSuffix(f.Name(), suffix); ok {
			if n, err := strconv.ParseUint(number, 10, 64); err == nil {
				s.segments = append(s.segments, n)
			}
		}
	}
	slices.Sort(s.segments)
	return s, nil
}

func (s *Store) path(segment uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%010d%s", segment, suffix))
}

// Record implements journal.Recorder.
func (s *Store) Record(e journal.Entry) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for f := range s.followers {
		f.take(&e)
	}
	if len(s.waiting) >= s.limits.Buffer {
		s.dropped++
		return
	}
	s.waiting = append(s.waiting, e)
	if s.timer == nil {
		s.timer = time.AfterFunc(s.limits.Delay, func() { s.report(s.Flush()) })
	}
}

// Flush writes queued entries. It runs automatically; callers need not call it.
func (s *Store) Flush() error {
	s.io.Lock()
	defer s.io.Unlock()
	s.mu.Lock()
	entries, dropped := s.waiting, s.dropped
	s.waiting, s.dropped = nil, 0
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.mu.Unlock()
	if dropped > 0 {
		klog.Background().Info("Timeline entries were dropped because writing is too slow", "dropped", dropped)
	}
	return s.write(entries)
}

// write appends entries; the caller holds s.io.
func (s *Store) write(entries []journal.Entry) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	for i := range entries {
		if s.file == nil || s.size+int64(buf.Len()) >= s.limits.Segment {
			if err := s.put(&buf); err != nil {
				return err
			}
			if err := s.rotate(); err != nil {
				return err
			}
		}
		if err := enc.Encode(&entries[i]); err != nil {
			return fmt.Errorf("encode timeline entry: %w", err)
		}
	}
	return s.put(&buf)
}

func (s *Store) put(buf *bytes.Buffer) error {
	if buf.Len() == 0 {
		return nil
	}
	n, err := s.file.Write(buf.Bytes())
	buf.Reset()
	if err != nil && n > 0 && s.file.Truncate(s.size) == nil { // the next entry must not continue a part of a line
		n = 0
	}
	s.size += int64(n)
	if err != nil {
		return fmt.Errorf("write timeline: %w", err)
	}
	return nil
}

// rotate starts a new segment and removes the oldest beyond the limit. A segment of an earlier run
// is never continued, because its last line may be incomplete.
func (s *Store) rotate() error {
	if s.file != nil {
		err := s.file.Close()
		s.file = nil
		if err != nil {
			return fmt.Errorf("close timeline segment: %w", err)
		}
	}
	next := uint64(1)
	if len(s.segments) > 0 {
		next = s.segments[len(s.segments)-1] + 1
	}
	f, err := os.OpenFile(s.path(next), os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create timeline segment: %w", err)
	}
	s.file, s.size = f, 0
	s.segments = append(s.segments, next)
	for len(s.segments) > s.limits.Files {
		if err := os.Remove(s.path(s.segments[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old timeline segment: %w", err)
		}
		s.segments = s.segments[1:]
	}
	return nil
}

// report logs a failed background write, once until a write succeeds again.
func (s *Store) report(err error) {
	s.io.Lock()
	defer s.io.Unlock()
	if err != nil && !s.failing {
		klog.Background().Error(err, "Cannot write the timeline; entries are lost", "dir", s.dir)
	}
	s.failing = err != nil
}

// Pod implements journal.Reader: all entries of the pods with this name, oldest first.
func (s *Store) Pod(ctx context.Context, namespace, name string) ([]journal.Entry, error) {
	s.report(s.Flush()) // what was written before can be read, also on a full disk
	s.io.Lock()
	segments := slices.Clone(s.segments)
	s.io.Unlock()
	var found []journal.Entry
	for _, n := range segments {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		entries, err := search(s.path(n), namespace, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read timeline: %w", err)
		}
		found = append(found, entries...)
	}
	slices.SortStableFunc(found, func(a, b journal.Entry) int { return a.Time.Compare(b.Time) })
	return found, nil
}

// search reads one segment and skips lines that do not parse: a crash may leave an incomplete
// entry.
func search(path, namespace, name string) ([]journal.Entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mark := []byte(`"pod":` + strconv.Quote(name)) // cheap check before decoding
	var found []journal.Entry
	r := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return found, nil //nolint:nilerr // the end, or a line that is being written
		}
		var e journal.Entry
		if bytes.Contains(line, mark) && json.Unmarshal(line, &e) == nil && e.Namespace == namespace && e.Pod == name {
			found = append(found, e)
		}
	}
}

// Close writes queued entries and closes the log; later entries are dropped.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	for f := range s.followers {
		f.poke()
	}
	s.mu.Unlock()
	err := s.Flush()
	s.io.Lock()
	defer s.io.Unlock()
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
		s.file = nil
	}
	return err
}
