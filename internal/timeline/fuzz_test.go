package timeline

import (
	"os"
	"testing"
	"time"

	"carob/internal/base/journal"
)

// FuzzSegments reads a log that a crash or a disk error has damaged: complete entries are returned,
// and the log continues.
func FuzzSegments(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-21T00:00:00Z","namespace":"a","pod":"b","uid":"u"}` + "\n" + `{"time":`))
	f.Add([]byte("\x00\x00\n{}\nnull\n[1]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.Record(journal.Entry{Namespace: "a", Pod: "b", Time: time.Unix(1, 0)})
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.path(s.segments[0]), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Pod(t.Context(), "a", "b"); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		s.Record(journal.Entry{Namespace: "a", Pod: "c", Time: time.Unix(2, 0)})
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	})
}
