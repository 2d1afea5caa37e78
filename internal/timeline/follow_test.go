package timeline

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"carob/internal/base/journal"
)

// names returns the pods in JSON lines, and "-" for the empty line behind the stored entries.
func names(t *testing.T, lines []byte) (out []string) {
	t.Helper()
	for line := range strings.Lines(string(lines)) {
		if line == "\n" {
			out = append(out, "-")
			continue
		}
		var e journal.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, e.Pod)
	}
	return out
}

// follow runs Follow until it has written n lines.
func follow(t *testing.T, s *Store, since time.Time, n int, meanwhile func(line int)) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all []byte
	err := s.Follow(ctx, since, func(lines []byte) error {
		all = append(all, lines...)
		count := bytes.Count(all, []byte("\n"))
		if meanwhile != nil {
			meanwhile(count)
		}
		if count >= n {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the stream ended with %v", err)
	}
	return names(t, all)
}

func TestFollow(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Defaults())
	s.Record(entry("earlier", 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Defaults())
	s.Record(entry("stored", 2))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	s.Record(entry("queued", 3))
	recorded := false
	got := follow(t, s, time.Time{}, 5, func(line int) {
		if line >= 4 && !recorded { // behind the stored entries
			recorded = true
			s.Record(entry("live", 4))
		}
	})
	if want := []string{"earlier", "stored", "queued", "-", "live"}; cmp.Diff(want, got) != "" {
		t.Error(cmp.Diff(want, got))
	}
	got = follow(t, s, time.Unix(3, 0), 3, nil)
	if want := []string{"queued", "live", "-"}; cmp.Diff(want, got) != "" {
		t.Errorf("since the third second: %v", got)
	}
	if len(s.followers) != 0 {
		t.Errorf("%d followers are left", len(s.followers))
	}
}

// Each entry comes once, also while others are written and segments are removed.
func TestFollowWhileRecording(t *testing.T) {
	limits := Defaults()
	limits.Segment, limits.Delay = 4000, time.Microsecond
	limits.Files = 1000
	s := open(t, t.TempDir(), limits)
	const each, writers = 500, 4
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				s.Record(entry(fmt.Sprintf("%d-%d", w, i), i))
			}
		})
	}
	got := follow(t, s, time.Time{}, each*writers+1, nil)
	all.Wait()
	next := [writers]int{}
	for _, name := range got {
		var w, i int
		if name == "-" {
			continue
		}
		if _, err := fmt.Sscanf(name, "%d-%d", &w, &i); err != nil || i != next[w] {
			t.Fatalf("entry %s came, entry %d is the next of its writer (%v)", name, next[w], err)
		}
		next[w]++
	}
	if next != [writers]int{each, each, each, each} {
		t.Errorf("entries of each writer: %v", next)
	}
}

func TestFollowersAreLimited(t *testing.T) {
	s := open(t, t.TempDir(), Defaults())
	f, _, err := s.follow()
	if err != nil {
		t.Fatal(err)
	}
	for range mostBehind + 5 {
		s.Record(entry("web", 1))
	}
	if len(f.queue) != mostBehind || !f.behind {
		t.Errorf("a client that does not read: %d entries, behind %v", len(f.queue), f.behind)
	}
	for range mostFollowers - 1 {
		if _, _, err := s.follow(); err != nil {
			t.Fatal(err)
		}
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/timeline/follow", nil))
	if rec.Code != http.StatusTooManyRequests {
		t.Errorf("one more follower: %d %s", rec.Code, rec.Body)
	}
	s.unfollow(f)
	if _, _, err := s.follow(); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

func TestSlowFollowerEnds(t *testing.T) {
	s := open(t, t.TempDir(), Defaults())
	err := s.Follow(t.Context(), time.Time{}, func(lines []byte) error {
		if string(lines) == "\n" {
			for range mostBehind + 1 {
				s.Record(entry("web", 1))
			}
		}
		return nil
	})
	if !errors.Is(err, errBehind) {
		t.Errorf("%v", err)
	}
}

func TestFollowOverHTTP(t *testing.T) {
	s := open(t, t.TempDir(), Defaults())
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	res, err := http.Get(server.URL + "/timeline/follow?since=yesterday")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("a time that is none: %s", res.Status)
	}
	s.Record(entry("before", 1))
	if res, err = http.Get(server.URL + "/timeline/follow?since=1970-01-01T00:00:00Z"); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	r := bufio.NewReader(res.Body)
	next := func() []string {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return []string{err.Error()}
		}
		return names(t, line)
	}
	for _, want := range []string{"before", "-"} {
		if got := next(); len(got) != 1 || got[0] != want {
			t.Errorf("%v instead of %s", got, want)
		}
	}
	s.Record(entry("after", 2))
	if got := next(); got[0] != "after" {
		t.Errorf("%v", got)
	}
	if err := s.Close(); err != nil { // the agent stops: the client notices
		t.Fatal(err)
	}
	if got := next(); got[0] != "EOF" {
		t.Errorf("after the end: %v", got)
	}
	if rec := httptest.NewRecorder(); true {
		s.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/timeline/follow", nil))
		if rec.Code != http.StatusServiceUnavailable {
			t.Errorf("a closed timeline: %d", rec.Code)
		}
	}
}

// A line that a crash cut off is left out, also before later segments.
func TestFollowPassesOverDamage(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Defaults())
	s.Record(entry("first", 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.path(1), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"time":"1970-01-01T00:00:01Z","pod":"ha`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	s = open(t, dir, Defaults())
	s.Record(entry("second", 2))
	got := follow(t, s, time.Time{}, 3, nil)
	if want := []string{"first", "second", "-"}; cmp.Diff(want, got) != "" {
		t.Error(cmp.Diff(want, got))
	}
}
