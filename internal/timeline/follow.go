package timeline

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"time"

	"carob/internal/base/journal"
)

const (
	mostFollowers = 16               // of one node; further ones are refused
	mostBehind    = 1 << 14          // entries that a follower has not read; then its stream ends
	writeTimeout  = 30 * time.Second // for one batch to a client
	batch         = 64 << 10         // bytes of one write
)

var (
	errFollowers = fmt.Errorf("%d clients follow the timeline already", mostFollowers)
	errBehind    = errors.New("the client reads more slowly than entries are made")
	errClosed    = errors.New("the timeline is closed")
)

// follower receives the entries that are recorded after it was made. It is guarded by Store.mu.
type follower struct {
	queue  []journal.Entry
	behind bool          // entries were dropped
	wake   chan struct{} // capacity 1
}

// take adds an entry; the caller holds Store.mu.
func (f *follower) take(e *journal.Entry) {
	if len(f.queue) >= mostBehind {
		f.behind = true
	} else {
		f.queue = append(f.queue, *e)
	}
	f.poke()
}

func (f *follower) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// cut is where the files of the log ended when a follower was made.
type cut struct {
	segments []uint64
	size     int64 // bytes of the current segment; negative: there is none, all segments are complete
}

// follow makes a follower: each entry is in the files before the cut, or comes to the follower.
func (s *Store) follow() (*follower, cut, error) {
	s.report(s.Flush()) // what was written before can be read, also on a full disk
	s.io.Lock()         // nothing is written between the cut and the first entry of the follower
	defer s.io.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, cut{}, errClosed
	case len(s.followers) >= mostFollowers:
		return nil, cut{}, errFollowers
	}
	at := cut{segments: slices.Clone(s.segments), size: -1}
	if s.file != nil {
		at.size = s.size
	}
	f := &follower{queue: slices.Clone(s.waiting), wake: make(chan struct{}, 1)}
	f.poke()
	if s.followers == nil {
		s.followers = map[*follower]struct{}{}
	}
	s.followers[f] = struct{}{}
	return f, at, nil
}

func (s *Store) unfollow(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.followers, f)
}

// Follow writes the entries of all pods since a time, and then each that is recorded, until ctx ends, write fails, or
// the store is closed. It writes JSON lines, in the order in which they were recorded; an empty line follows the
// stored entries.
func (s *Store) Follow(ctx context.Context, since time.Time, write func([]byte) error) error {
	f, at, err := s.follow()
	if err != nil {
		return err
	}
	defer s.unfollow(f)
	for i, n := range at.segments {
		size := int64(-1)
		if i == len(at.segments)-1 {
			size = at.size
		}
		err := replay(ctx, s.path(n), size, since, write)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return err
		}
	}
	if err := write([]byte("\n")); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.wake:
		}
		s.mu.Lock()
		entries, behind, closed := f.queue, f.behind, s.closed
		f.queue = nil
		s.mu.Unlock()
		var buf bytes.Buffer
		enc := json.NewEncoder(&buf)
		enc.SetEscapeHTML(false)
		for i := range entries {
			if entries[i].Time.Before(since) {
				continue
			}
			if err := enc.Encode(&entries[i]); err != nil {
				return fmt.Errorf("encode timeline entry: %w", err)
			}
		}
		if buf.Len() > 0 {
			if err := write(buf.Bytes()); err != nil {
				return err
			}
		}
		switch {
		case behind:
			return errBehind
		case closed:
			return errClosed
		}
	}
}

// replay writes the lines of a segment up to a size (negative: all) whose entries are not older than since.
func replay(ctx context.Context, path string, size int64, since time.Time, write func([]byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var from io.Reader = file
	if size >= 0 {
		from = io.LimitReader(file, size)
	}
	r := bufio.NewReaderSize(from, 64<<10)
	var out []byte
	for {
		line, err := r.ReadBytes('\n')
		last := err != nil // the end, or a line that a crash cut off
		var e struct {
			Time time.Time `json:"time"`
		}
		if !last && json.Unmarshal(line, &e) == nil && !e.Time.Before(since) {
			out = append(out, line...)
		}
		if len(out) >= batch || last && len(out) > 0 {
			if err := write(out); err != nil {
				return err
			}
			out = out[:0]
		}
		if last {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// serveFollow serves Follow. The time of a write is limited: a client that does not read must not hold the stream.
func (s *Store) serveFollow(w http.ResponseWriter, r *http.Request) {
	var since time.Time
	if text := r.URL.Query().Get("since"); text != "" {
		var err error
		if since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			http.Error(w, "since is not a time of RFC 3339", http.StatusBadRequest)
			return
		}
	}
	control := http.NewResponseController(w)
	began := false
	err := s.Follow(r.Context(), since, func(lines []byte) error {
		if !began {
			began = true
			w.Header().Set("Content-Type", "application/x-ndjson")
		}
		// Not every ResponseWriter has deadlines.
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write(lines); err != nil {
			return err
		}
		return control.Flush()
	})
	switch {
	case began: // the stream ends, and the client follows again
	case errors.Is(err, errFollowers):
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
	_ = control.SetWriteDeadline(time.Time{})
}
