package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A new version of a record is written to its second file: the files in the directory keep their
// sizes, unless the record has outgrown them.
func TestRecordFilesAreExchanged(t *testing.T) {
	dir := t.TempDir()
	rec := Container{ID: "c", Reason: "Created"}
	if err := Create(dir, &rec); err != nil {
		t.Fatal(err)
	}
	sizes := func() (list [2]int64) {
		for i, name := range []string{recordFile, twinFile} {
			st, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			list[i] = st.Size()
		}
		return list
	}
	before := sizes()
	for _, reason := range []string{"Running", strings.Repeat("r", recordRoom), strings.Repeat("long", 3*recordRoom),
		"Completed"} {
		rec.Reason = reason
		if err := Save(dir, &rec); err != nil {
			t.Fatal(err)
		}
		var back Container
		if err := Load(dir, &back); err != nil || back.Reason != reason {
			t.Errorf("%d bytes of reason come back as %d, %v", len(reason), len(back.Reason), err)
		}
		if len(reason) <= recordRoom && reason != "Completed" && sizes() != before {
			t.Errorf("sizes %v, before %v", sizes(), before)
		}
	}
}

// A record that is missing or incomplete was never finished; one that cannot be read now may be
// readable later.
func TestUnreadableRecords(t *testing.T) {
	dir := t.TempDir()
	var rec Sandbox
	if err := Load(dir, &rec); err == nil || Unreadable(err) {
		t.Errorf("missing: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(`{"id":"s`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Load(dir, &rec); err == nil || Unreadable(err) {
		t.Errorf("cut off: %v", err)
	}
	if !Unreadable(&fs.PathError{Op: "open", Err: unix.EMFILE}) {
		t.Error("without descriptors a record counts as never finished")
	}
}

func TestExits(t *testing.T) {
	dir := t.TempDir()
	if _, ended, err := LoadExit(dir); ended || err != nil {
		t.Errorf("before the end: %v, %v", ended, err)
	}
	if err := ReserveExit(dir); err != nil {
		t.Fatal(err)
	}
	if _, ended, err := LoadExit(dir); ended || err != nil {
		t.Errorf("room for it is an end: %v, %v", ended, err)
	}
	for text, want := range map[string]Exit{"137 1 1700000000000000000\n": {Code: 137, OOM: true,
		At: 1700000000000000000}, "0 0 5\n": {At: 5}, "": {}, "1 2": {}, "x 0 5": {}, "1 0 y": {}} {
		if err := os.WriteFile(filepath.Join(dir, "exit"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, ended, err := LoadExit(dir)
		if got != want || ended != (want.At != 0) || (err == nil) != ended {
			t.Errorf("%q: %+v, %v, %v", text, got, ended, err)
		}
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "exit")),
		os.Mkdir(filepath.Join(dir, "exit"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, ended, err := LoadExit(dir); ended || err == nil {
		t.Error("a directory is an end")
	}
}
