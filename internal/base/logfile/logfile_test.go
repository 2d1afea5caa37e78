package logfile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// childEnv names the log file of a child process of TestPanic.
const childEnv = "LOGFILE_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		l := New(os.Stderr)
		l.most = 100
		l.Rotate(path)
		for i := range 20 {
			fmt.Fprintf(l, "this is line number %d\n", i)
		}
		if os.Getenv(childEnv+"_KILL") != "" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		panic("the text of a panic")
	}
	os.Exit(m.Run())
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// start returns a Log of the file carob.log in a new directory, which is moved aside from 100 bytes on.
func start(t *testing.T) (*Log, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "carob.log")
	l := New(open(t, path))
	l.most = 100
	l.Rotate(path)
	return l, path
}

func TestRotate(t *testing.T) {
	l, path := start(t)
	for i := range 1000 {
		if n, err := fmt.Fprintf(l, "line %d\n", i); err != nil || n < 7 {
			t.Fatal(n, err)
		}
	}
	all := text(t, Previous(path, 2)) + text(t, Previous(path, 1)) + text(t, path)
	if !strings.HasSuffix(all, "line 997\nline 998\nline 999\n") || strings.Count(all, "\n") < 20 {
		t.Errorf("the end of the log: %q", all)
	}
	if got := fmt.Sprint(names(t, filepath.Dir(path))); got != "[carob.log carob.log.1 carob.log.2]" {
		t.Error("files:", got)
	}
	for _, name := range names(t, filepath.Dir(path)) {
		st, err := os.Stat(filepath.Join(filepath.Dir(path), name))
		if err != nil || st.Mode() != 0o600 || st.Size() > 100 {
			t.Errorf("%s: %v, %d bytes, %v", name, st.Mode(), st.Size(), err)
		}
	}
}

// What the Go runtime writes when the process panics is at the end of the current file. Killing the process loses
// nothing either.
func TestPanic(t *testing.T) {
	for _, kill := range []string{"", "1"} {
		path := filepath.Join(t.TempDir(), "carob.log")
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), childEnv+"="+path, childEnv+"_KILL="+kill)
		c.Stderr = open(t, path)
		if err := c.Run(); err == nil {
			t.Fatal("the process ended well")
		}
		got := text(t, path)
		if !strings.Contains(text(t, Previous(path, 1))+got, "line number 19\n") {
			t.Errorf("the last line is missing: %q", got)
		}
		if kill == "" && !strings.Contains(got, "panic: the text of a panic") {
			t.Errorf("the panic is missing: %q", got)
		}
	}
}

// A file that an earlier process left too large, for example with its panics, is moved aside at the start.
func TestLargeAtStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carob.log")
	long := strings.Repeat("x", 101)
	f := open(t, path)
	fmt.Fprint(f, long)
	l := New(f)
	l.most = 100
	fmt.Fprint(l, "!") // before this process owns the file, nothing is moved
	l.Rotate(path)
	if text(t, Previous(path, 1)) != long+"!" || text(t, path) != "" {
		t.Error(text(t, path))
	}
}

// What a crash between two steps leaves does no harm.
func TestLeftOver(t *testing.T) {
	l, path := start(t)
	if err := os.WriteFile(path+".new", []byte("left over"), 0o600); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(l, strings.Repeat("x", 60))
	fmt.Fprint(l, strings.Repeat("y", 60))
	if got := text(t, path); got != strings.Repeat("y", 60) {
		t.Errorf("%q", got)
	}
}

// A file that cannot be moved is emptied at twice its size.
func TestCannotMove(t *testing.T) {
	l, path := start(t)
	if err := os.MkdirAll(filepath.Join(Previous(path, 1), "a directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(Previous(path, 2), "a directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		fmt.Fprintf(l, "line %d\n", i)
		if st, err := os.Stat(path); err != nil || st.Size() > 400 {
			t.Fatal(st.Size(), err)
		}
	}
	if got := text(t, path); !strings.HasSuffix(got, "line 99\n") || !strings.Contains(got, "was emptied because") {
		t.Errorf("%q", got)
	}
}

// Another program moved the file: its file stays, and a new one is at the path.
func TestMovedByOthers(t *testing.T) {
	l, path := start(t)
	fmt.Fprint(l, strings.Repeat("x", 60))
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(l, strings.Repeat("y", 60))
	if text(t, path) != strings.Repeat("y", 60) || text(t, path+".moved") != strings.Repeat("x", 60) {
		t.Errorf("%q", text(t, path))
	}
}

// A standard error that is another file, or no file at all, is not moved.
func TestOtherFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "carob.log")
	open(t, path)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, out := range []*os.File{open(t, filepath.Join(dir, "other.log")), w} {
		l := New(out)
		l.most = 100
		l.Rotate(path)
		l.Rotate(filepath.Join(dir, "missing"))
		for range 3 {
			fmt.Fprint(l, strings.Repeat("x", 60))
		}
		out.Close()
	}
	if got := fmt.Sprint(names(t, dir)); got != "[carob.log other.log]" {
		t.Error(got)
	}
}

// A link to the file stays a link.
func TestLink(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "real.log"), filepath.Join(dir, "carob.log")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	l := New(open(t, link))
	l.most = 100
	l.Rotate(link)
	for range 3 {
		fmt.Fprint(l, strings.Repeat("x", 60))
	}
	if got := fmt.Sprint(names(t, dir)); got != "[carob.log real.log real.log.1 real.log.2]" {
		t.Error(got)
	}
}
