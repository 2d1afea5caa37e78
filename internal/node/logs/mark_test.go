package logs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A log that is read up to a mark and from there on is read once, all of it.
func TestMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns_pod_uid", "c", "0.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for line := range strings.Lines(text) {
			if _, err := f.WriteString("2026-11-21T00:00:01Z stdout F " + line); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func(o Options) (string, Mark) {
		t.Helper()
		var out strings.Builder
		end, err := ReadTo(t.Context(), path, o, nil, &out, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out.String(), end
	}
	from := func(m Mark) (string, Mark, error) {
		var out strings.Builder
		end, err := ReadFrom(t.Context(), path, m, &out, nil)
		return out.String(), end, err
	}
	if _, err := End(path); err == nil {
		t.Error("no log has an end")
	}
	write("a\nb\n")
	mark, err := End(path)
	if err != nil {
		t.Fatal(err)
	}
	write("c\n")
	text, end := read(Options{Until: &mark})
	if text != "a\nb\n" || !end.Same(mark) {
		t.Errorf("until the mark: %q %v", text, end)
	}
	text, last, err := from(end)
	if text != "c\n" || err != nil || last.Same(end) {
		t.Errorf("from the mark: %q %v", text, err)
	}
	if text, _, err := from(last); text != "" || err != nil {
		t.Errorf("from the end: %q %v", text, err)
	}
	if text, end := read(Options{}); text != "a\nb\nc\n" || !end.Same(last) {
		t.Errorf("all: %q", text)
	}
	// Rotated: the content before the mark is returned, the rest is in two files.
	if err := os.Rename(path, path+".20261121-000002"); err != nil {
		t.Fatal(err)
	}
	write("d\n")
	if text, _ := read(Options{Until: &mark}); text != "a\nb\nc\nd\n" {
		t.Errorf("a mark of a file that was rotated: %q", text)
	}
	if text, _, err := from(last); !errors.Is(err, ErrRotated) || text != "" {
		t.Errorf("from a mark of a file that was rotated: %q %v", text, err)
	}
}
