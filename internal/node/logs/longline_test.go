package logs

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A line that no runtime writes takes little memory, in each form of a log, and does not hide the next one.
func TestLongLine(t *testing.T) {
	const begin, good = "2026-11-29T00:00:00Z stdout F ", "2026-11-29T00:00:01Z stdout F good\n"
	long := begin + strings.Repeat("x", 4*longestLine)
	dir := t.TempDir()
	path := filepath.Join(dir, "ns_pod_uid", "c", "0.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(long + "\n" + good)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	check := func(what, text string) {
		t.Helper()
		if len(text) > longestLine+100 || !strings.HasPrefix(text, "xxx") || !strings.HasSuffix(text, "x\ngood\n") {
			t.Errorf("%s: %d bytes, which end with %q", what, len(text), text[max(0, len(text)-20):])
		}
	}
	read := func() string {
		var out bytes.Buffer
		if _, err := ReadTo(t.Context(), path, Options{}, nil, &out, &out); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	for what, files := range map[string]map[string]string{
		"the current file":  {path: long + "\n" + good},
		"a rotated file":    {path: good[:0], path + ".20261129-000000": long + "\n" + good},
		"a compressed file": {path: good[:0], path + ".20261129-000000.gz": packed.String()},
	} {
		for name, text := range files {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		check(what, read())
		for name := range files {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(path, []byte(long+"\n"+good), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := Tail(path, 10, 8*longestLine)
	if err != nil {
		t.Error(err)
	}
	check("the tail", text)
	if err := os.WriteFile(path, []byte(long), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := read(); len(text) > longestLine+100 {
		t.Errorf("without an end of line: %d bytes", len(text))
	}
}
