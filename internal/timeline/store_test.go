package timeline

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"carob/internal/base/journal"
)

func entry(pod string, second int) journal.Entry {
	return journal.Entry{
		Time: time.Unix(int64(second), 0).UTC(), Namespace: "default", Pod: pod, UID: "u", Kind: journal.Event,
		Key: "Pulled", Detail: `said "hello" <there>`,
	}
}

func open(t *testing.T, dir string, l Limits) *Store {
	t.Helper()
	s, err := OpenLimited(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func read(t *testing.T, s *Store, pod string) []journal.Entry {
	t.Helper()
	entries, err := s.Pod(t.Context(), "default", pod)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestSurvivesPodAndRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "timeline")
	s := open(t, dir, Defaults())
	s.Record(entry("web", 2))
	s.Record(entry("other", 3))
	s.Record(entry("web", 1)) // late: the clock is read before the lock is taken
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.Record(entry("web", 9)) // after Close: dropped
	s = open(t, dir, Defaults())
	s.Record(entry("web", 4))
	want := []journal.Entry{entry("web", 1), entry("web", 2), entry("web", 4)}
	if diff := cmp.Diff(want, read(t, s, "web")); diff != "" {
		t.Error(diff)
	}
}

func TestIncompleteLine(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Defaults())
	s.Record(entry("web", 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "0000000001.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"time":"2026-01-01T00:00:00Z","namespace":"default","pod":"web`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Defaults())
	s.Record(entry("web", 2))
	if diff := cmp.Diff([]journal.Entry{entry("web", 1), entry("web", 2)}, read(t, s, "web")); diff != "" {
		t.Error(diff)
	}
}

func TestSizeLimit(t *testing.T) {
	dir := t.TempDir()
	l := Limits{Segment: 1000, Files: 3, Buffer: 1000, Delay: time.Hour}
	s := open(t, dir, l)
	for i := range 200 {
		s.Record(entry("web", i))
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != l.Files {
		t.Errorf("%d files, want %d", len(files), l.Files)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > 2*l.Segment || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has %d bytes and mode %v", f.Name(), info.Size(), info.Mode())
		}
	}
	got := read(t, s, "web")
	if len(got) == 0 || !got[len(got)-1].Time.Equal(time.Unix(199, 0)) {
		t.Errorf("the newest must stay, got %d entries", len(got))
	}
}

func TestQueueLimit(t *testing.T) {
	s := open(t, t.TempDir(), Limits{Segment: 1 << 20, Files: 2, Buffer: 5, Delay: time.Hour})
	for i := range 9 {
		s.Record(entry("web", i))
	}
	if got := len(read(t, s, "web")); got != 5 {
		t.Errorf("%d entries, want the first 5", got)
	}
}

// TestQueuedEntriesAreWrittenOnce: queued entries are written together after the delay, and no
// timer runs afterwards.
func TestQueuedEntriesAreWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir, Defaults())
		for i := range 10 {
			s.Record(entry("web", i+1))
		}
		files, _ := os.ReadDir(dir)
		if len(files) != 0 {
			t.Error("written at once")
		}
		time.Sleep(Defaults().Delay)
		synctest.Wait()
		info, err := os.Stat(filepath.Join(dir, "0000000001.jsonl"))
		if err != nil || info.Size() == 0 {
			t.Errorf("not written after the delay: %v", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.timer != nil {
			t.Error("a timer runs while no entries are queued")
		}
	})
}

func TestHandler(t *testing.T) {
	s := open(t, t.TempDir(), Defaults())
	for i := range 3 {
		s.Record(entry("web", i+1))
	}
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	for path, want := range map[string]int{
		"/timeline/default/web":    http.StatusOK,
		"/timeline/default/absent": http.StatusNotFound,
		"/timeline/other/web":      http.StatusNotFound,
		"/timeline/default":        http.StatusNotFound,
	} {
		answer, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		var entries []journal.Entry
		if answer.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, answer.Status, want)
		} else if want == http.StatusOK {
			if err := json.NewDecoder(answer.Body).Decode(&entries); err != nil || len(entries) != 3 {
				t.Errorf("%d entries, %v", len(entries), err)
			}
		}
		answer.Body.Close()
	}
}

func BenchmarkRecord(b *testing.B) {
	s, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	e := entry("web", 1)
	for i := 0; b.Loop(); i++ {
		e.Pod = fmt.Sprint("p", i%200)
		s.Record(e)
	}
}
