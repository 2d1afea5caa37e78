package logs

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"pgregory.net/rapid"

	"carob/internal/base/testwait"
)

// line is one line of a log file, n seconds after midnight.
func line(n int, stream, tag, text string) string {
	return fmt.Sprintf("2026-11-21T00:%02d:%02d.5Z %s %s %s\n", n/60, n%60, stream, tag, text)
}

func lines(from, to int) string {
	var b strings.Builder
	for n := from; n < to; n++ {
		b.WriteString(line(n, "stdout", "F", fmt.Sprint(n)))
	}
	return b.String()
}

func numbers(from, to int) string {
	var b strings.Builder
	for n := from; n < to; n++ {
		fmt.Fprintln(&b, n)
	}
	return b.String()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if strings.HasSuffix(path, compressed) {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		io.WriteString(z, text)
		z.Close()
		text = b.String()
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// What part of a log is shown, and how.
func TestRead(t *testing.T) {
	mixed := line(1, "stdout", "F", "a") + line(2, "stderr", "F", "b") + line(3, "stdout", "P", "c1 ") +
		line(4, "stderr", "F", "d") +
		line(5, "stdout", "F:x", "c2") + "broken\n" + line(6, "stdout", "F", "")
	tests := []struct {
		name     string
		text     string
		o        Options
		out, err string
	}{
		{name: "all", text: mixed, out: "a\nc1 c2\n\n", err: "b\nd\n"},
		{name: "last lines", text: mixed, o: Options{Tail: new(int64(4))}, out: "c2\n\n", err: "d\n"},
		{name: "more than there are", text: mixed, o: Options{Tail: new(int64(99))}, out: "a\nc1 c2\n\n",
			err: "b\nd\n"},
		{name: "none", text: mixed, o: Options{Tail: new(int64(0))}},
		{name: "since", text: mixed, o: Options{Since: time.Date(2026, 11, 21, 0, 0, 5, 0, time.UTC)}, out: "c2\n\n"},
		{name: "times", text: line(1, "stdout", "P", "x") + line(2, "stdout", "F", "y") + line(3, "stdout", "F", "z"),
			o:   Options{Timestamps: true},
			out: "2026-11-21T00:00:01.500000000Z xy\n2026-11-21T00:00:03.500000000Z z\n"},
		{name: "limit", text: lines(10, 20), o: Options{Limit: new(int64(7))}, out: "10\n11\n1"},
		{name: "no end of line", text: lines(1, 2) + strings.TrimSuffix(lines(2, 3), "\n"), out: "1\n2\n"},
		{name: "empty", text: ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			write(t, path, tc.text)
			var out, err bytes.Buffer
			if err := read(t.Context(), path, tc.o, nil, &out, &err); err != nil {
				t.Fatal(err)
			}
			if out.String() != tc.out || err.String() != tc.err {
				t.Errorf("got %q and %q, want %q and %q", out.String(), err.String(), tc.out, tc.err)
			}
			var one bytes.Buffer
			if err := read(t.Context(), path, tc.o, nil, &one, nil); err != nil || one.String() != tc.out &&
				tc.o.Limit == nil {
				t.Errorf("stdout alone: %q, %v", one.String(), err)
			}
		})
	}
	if err := read(t.Context(), filepath.Join(t.TempDir(), "0.log"), Options{}, nil, io.Discard, nil); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("no log: %v", err)
	}
}

// What rotation moved away belongs to the log (L3.155).
func TestReadRotated(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "3.log")
	write(t, path+".20261121-000010.gz", lines(0, 10))
	write(t, path+".20261121-000020.gz", lines(10, 20))
	write(t, path+".20261121-000030", lines(20, 30))
	write(t, path+".20261121-000030.gz", lines(20, 30)) // a crash came between
	write(t, path+".20261121-000031.gz.tmp", "half")
	write(t, path, lines(30, 35))
	write(t, filepath.Join(dir, "2.log"), "other")
	for tail, from := range map[int64]int{-1: 0, 0: 35, 3: 32, 5: 30, 6: 29, 15: 20, 16: 19, 26: 9, 35: 0, 99: 0} {
		o := Options{Tail: &tail}
		if tail < 0 {
			o.Tail = nil
		}
		var out bytes.Buffer
		if err := read(t.Context(), path, o, nil, &out, &out); err != nil {
			t.Fatal(err)
		}
		if want := numbers(from, 35); out.String() != want {
			t.Errorf("tail %d: %s", tail, cmp.Diff(want, out.String()))
		}
	}
}

// syncBuffer signals changes of its content.
type syncBuffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	grow chan struct{}
}

func newSyncBuffer() *syncBuffer { return &syncBuffer{grow: make(chan struct{}, 1)} }

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.grow <- struct{}{}:
	default:
	}
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// waitFor waits until the buffer holds the text.
func (s *syncBuffer) waitFor(t *testing.T, want string) {
	t.Helper()
	for s.String() != want {
		select {
		case <-s.grow:
		case <-t.Context().Done():
			t.Fatalf("got %q, want %q", s.String(), want)
		}
	}
}

// A follower sees every line once: of a file that is not there yet, through
// rotations (two at once, too), and of what was written just before the end.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	out := newSyncBuffer()
	ended := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- read(t.Context(), path, Options{Follow: true}, ended, out, out) }()
	rotate := func(stamp string) {
		t.Helper()
		if err := os.Rename(path, path+".20261121-"+stamp); err != nil {
			t.Fatal(err)
		}
	}
	appendTo(t, path, lines(0, 2))
	out.waitFor(t, numbers(0, 2))
	appendTo(t, path, lines(2, 3)[:12])
	appendTo(t, path, lines(2, 3)[12:])
	out.waitFor(t, numbers(0, 3))
	appendTo(t, path, lines(3, 4))
	rotate("000001")
	appendTo(t, path, lines(4, 5))
	out.waitFor(t, numbers(0, 5))
	rotate("000002")
	appendTo(t, path, lines(5, 6))
	rotate("000003")
	appendTo(t, path, lines(6, 7))
	out.waitFor(t, numbers(0, 7))
	appendTo(t, path, lines(7, 8))
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if want := numbers(0, 8); out.String() != want {
		t.Error(cmp.Diff(want, out.String()))
	}
}

// During a rotation the runtime writes to the old file until it has the new one: a follower leaves the old one when the
// new one has content, or when another file follows it.
func TestFollowDuringRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	old := path + ".20261121-000001"
	appendTo(t, path, lines(0, 1))
	f, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{file: f}
	defer r.close()
	next := func(want string) {
		t.Helper()
		_, f, err := r.next(path)
		got := ""
		if f != nil {
			got = filepath.Base(f.Name())
			f.Close()
		}
		if err != nil || got != want {
			t.Errorf("next is %q, %v; want %q", got, err, want)
		}
	}
	next("")
	if err := os.Rename(path, old); err != nil {
		t.Fatal(err)
	}
	next("") // there is no new file yet
	appendTo(t, path, "")
	next("")
	appendTo(t, old, lines(1, 2)) // the runtime does not have the new one
	next("")
	appendTo(t, path, lines(2, 3))
	next("0.log")
	if err := os.Rename(path, path+".20261121-000002"); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, "")
	next("0.log.20261121-000002")
}

// A follower sees what is written after others have truncated the log.
func TestFollowATruncatedLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, lines(0, 5)+"2026-11-21T00:00:00Z stdout F a part of a li")
	out := newSyncBuffer()
	ended := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- read(t.Context(), path, Options{Follow: true}, ended, out, out) }()
	out.waitFor(t, numbers(0, 5))
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, lines(5, 7))
	out.waitFor(t, numbers(0, 7))
	close(ended)
	if err := <-done; err != nil || out.String() != numbers(0, 7) {
		t.Errorf("%q %v", out.String(), err)
	}
}

// A limit that the log has reached ends the reading, although no further line comes.
func TestFollowEndsAtItsLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, lines(10, 12))
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit) // only a failure waits for it
	defer cancel()
	var out bytes.Buffer
	o := Options{Follow: true, Limit: new(int64(6))}
	if err := read(ctx, path, o, make(chan struct{}), &out, &out); err != nil || out.String() != "10\n11\n" {
		t.Errorf("%q %v", out.String(), err)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, lines(0, 1))
	ctx, cancel := context.WithCancel(t.Context())
	out := newSyncBuffer()
	done := make(chan error, 1)
	go func() { done <- read(ctx, path, Options{Follow: true}, nil, out, nil) }()
	out.waitFor(t, "0\n")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Finding the end from behind agrees with counting from the front.
func TestTailOffset(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rapid.IntRange(0, 70_000)).Draw(t, "lengths")
		if len(parts) > 6 {
			parts = parts[:6]
		}
		var b strings.Builder
		var starts []int64
		for _, n := range parts {
			starts = append(starts, int64(b.Len()))
			b.WriteString(strings.Repeat("x", n) + "\n")
		}
		text := b.String()
		if rapid.Bool().Draw(t, "unfinished") && len(text) > 1 {
			text = strings.TrimSuffix(text, "\n")
			if starts[len(starts)-1] == int64(len(text)) {
				starts = starts[:len(starts)-1] // the last line was empty
			}
		}
		n := int64(rapid.IntRange(0, 8).Draw(t, "n"))
		got, short, err := tailOffset(strings.NewReader(text), int64(len(text)), n)
		want, wantShort := int64(0), n-int64(len(starts))
		if wantShort <= 0 {
			wantShort = 0
			want = int64(len(text))
			if n > 0 {
				want = starts[int64(len(starts))-n]
			}
		}
		if err != nil || got != want || short != wantShort {
			t.Fatalf("got %d short %d (%v), want %d short %d", got, short, err, want, wantShort)
		}
	})
}

// The end of a log for a termination message (L3.151).
func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, lines(0, 100)+line(100, "stderr", "P", "par")+line(101, "stderr", "F", "tial"))
	if got, err := Tail(path, 80, 2048); err != nil || got != numbers(22, 100)+"partial\n" {
		t.Errorf("%q %v", got, err)
	}
	if got, err := Tail(path, 80, 10); err != nil || got != "9\npartial\n" {
		t.Errorf("%q %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(line(1, "stdout", "P:t", "text with blanks ")))
	f.Add([]byte("2026-11-21T00:00:00Z stderr F "))
	f.Add([]byte("   \n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := parse(text)
		if err != nil {
			return
		}
		// Nothing is lost: the parts are the line.
		tag := "F"
		if e.partial {
			tag = "P"
		}
		head := fmt.Sprintf("%s %s %s", e.time, e.stream, tag)
		body := strings.TrimSuffix(string(text), "\n")
		if !strings.HasPrefix(body, head) || !strings.HasSuffix(body, " "+string(e.text)) {
			t.Errorf("%q parsed as %q %q", text, head, e.text)
		}
	})
}

// fakeRuntime makes the new log file as a runtime does.
type fakeRuntime struct {
	path string
	err  error
}

func (r *fakeRuntime) ReopenContainerLog(context.Context,
	*cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error) {
	if r.err != nil {
		return nil, r.err
	}
	return &cri.ReopenContainerLogResponse{}, os.WriteFile(r.path, nil, 0o600)
}

// At most MaxFiles stay, all but the newest compressed, and nothing is lost of them (L3.155).
func TestRotate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	r := &Rotator{Runtime: &fakeRuntime{path: path}, MaxFiles: 4, Logger: klog.Background()}
	at := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	for i := range 6 {
		write(t, path, lines(10*i, 10*i+10))
		if err := r.rotate(t.Context(), "c", path, at.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{"0.log", "0.log.20261121-090003.gz", "0.log.20261121-090004.gz", "0.log.20261121-090005"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	var out bytes.Buffer
	if err := read(t.Context(), path, Options{}, nil, &out, &out); err != nil || out.String() != numbers(30, 60) {
		t.Errorf("%v: %s", err, cmp.Diff(numbers(30, 60), out.String()))
	}

	r.Runtime = &fakeRuntime{err: errors.New("no")}
	write(t, path, lines(0, 1))
	if err := r.rotate(t.Context(), "c", path, at.Add(time.Hour)); err == nil {
		t.Error("a failed reopen must be reported")
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != lines(0, 1) {
		t.Errorf("the log must be back in its place: %q %v", text, err)
	}
}

// Growing logs are checked and rotated; quiet ones are not checked until inotify reports a write.
func TestRotator(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, lines(0, 3))
	r := &Rotator{Runtime: &fakeRuntime{path: path}, MaxSize: 200, Logger: klog.Background()}
	r.Add("c", path)
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if !r.look(t.Context(), w) {
		t.Fatal("the first look knows no growth yet")
	}
	if r.look(t.Context(), w) {
		t.Fatal("a quiet log needs no further look")
	}
	appendTo(t, path, lines(3, 9))
	ev := <-w.Events
	if !r.grew(w, ev.Name) {
		t.Fatal("the write was not noticed")
	}
	if !r.look(t.Context(), w) {
		t.Fatal("a growing log needs a further look")
	}
	if old, err := rotated(path); err != nil || len(old) != 1 {
		t.Errorf("rotated: %q %v", old, err)
	}
	r.Remove("c")
	if r.look(t.Context(), w) {
		t.Error("nothing is left to look at")
	}
}

// A log whose file is missing is made again: an agent was killed after it had moved the file away, or it was removed
// by others. Otherwise the container would write to a file without a limit that no reader finds (L3.155).
func TestMissingLogIsReopened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	away := path + "." + time.Now().UTC().Format(rotatedTime)
	write(t, away, lines(0, 3))
	failing := &fakeRuntime{path: path, err: errors.New("no")}
	r := &Rotator{Runtime: failing, MaxSize: 200, Logger: klog.Background()}
	r.Add("c", path)
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for range 2 {
		if !r.look(t.Context(), w) {
			t.Fatal("it must be tried again")
		}
	}
	failing.err = nil
	if !r.look(t.Context(), w) {
		t.Fatal("the new file may grow")
	}
	appendTo(t, path, lines(3, 5))
	var out bytes.Buffer
	if err := read(t.Context(), path, Options{}, nil, &out, &out); err != nil || out.String() != numbers(0, 5) {
		t.Errorf("%q %v", out.String(), err)
	}
}

// Run plans looks by itself and ends with its context.
func TestRotatorRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, lines(0, 30))
	r := &Rotator{Runtime: &fakeRuntime{path: path}, MaxSize: 200, Logger: klog.Background()}
	r.Add("c", path)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestLinks: a pod that can write to the host's log directory (hostPath) sets traps. Nothing
// is read, compressed, emptied or moved through a link, at whatever part of the path it is.
func TestLinks(t *testing.T) {
	host := t.TempDir()
	secret := filepath.Join(host, "secret")
	elsewhere := filepath.Join(host, "elsewhere")
	for _, err := range []error{os.Mkdir(elsewhere, 0o755), os.WriteFile(secret, []byte(lines(0, 3)), 0o600),
		os.WriteFile(filepath.Join(elsewhere, "0.log"), []byte(lines(0, 3)), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		trap func(root string) error
	}{
		{"the file", func(root string) error { return os.Symlink(secret, filepath.Join(root, "pod", "c", "0.log")) }},
		{"a relative one", func(root string) error {
			return os.Symlink("../../../secret", filepath.Join(root, "pod", "c", "0.log"))
		}},
		{"the container's directory", func(root string) error {
			return errors.Join(os.Remove(filepath.Join(root, "pod", "c")),
				os.Symlink(elsewhere, filepath.Join(root, "pod", "c")))
		}},
		{"the pod's directory", func(root string) error {
			return errors.Join(os.RemoveAll(filepath.Join(root, "pod")), os.Symlink(host, filepath.Join(root, "pod")),
				os.Symlink("elsewhere", filepath.Join(host, "c")))
		}},
		{"a pipe", func(root string) error { return unix.Mkfifo(filepath.Join(root, "pod", "c", "0.log"), 0o600) }},
	} {
		root := filepath.Join(host, "pods")
		if err := os.MkdirAll(filepath.Join(root, "pod", "c"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := c.trap(root); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, "pod", "c", "0.log")
		var out bytes.Buffer
		if err := read(t.Context(), path, Options{}, nil, &out, &out); err == nil || out.Len() > 0 {
			t.Errorf("%s: ESCAPED: read %q, %v", c.name, &out, err)
		}
		if text, err := Tail(path, 80, 2048); err == nil || text != "" {
			t.Errorf("%s: ESCAPED: tail %q, %v", c.name, text, err)
		}
		r := &Rotator{Runtime: &fakeRuntime{err: errors.New("it refuses")}, MaxSize: 1, Logger: klog.Background()}
		_ = r.rotate(t.Context(), "c", path, time.Unix(0, 0)) // refused, or the link itself is moved and back
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
	}
	// The files that a rotation makes and removes.
	dir := filepath.Join(host, "pods", "pod", "c")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "0.log")
	write(t, path, lines(0, 1))
	write(t, path+".20260101-000000", lines(1, 2))
	for _, trap := range []string{path + ".20260101-000000" + unfinished, path + ".20260101-000001",
		path + ".20260101-000002" + compressed} {
		if err := os.Symlink(secret, trap); err != nil {
			t.Fatal(err)
		}
	}
	r := &Rotator{Runtime: &fakeRuntime{path: path}, MaxFiles: 9, Logger: klog.Background()}
	err := r.rotate(t.Context(), "c", path, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	if err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link among the rotated files: %v", err)
	}
	for _, name := range []string{secret, filepath.Join(elsewhere, "0.log")} {
		if b, err := os.ReadFile(name); err != nil || string(b) != lines(0, 3) {
			t.Errorf("ESCAPED: %s holds %q, %v", name, b, err)
		}
	}
}

func read(ctx context.Context, path string, o Options, ended <-chan struct{}, stdout, stderr io.Writer) error {
	_, err := ReadTo(ctx, path, o, ended, stdout, stderr)
	return err
}
