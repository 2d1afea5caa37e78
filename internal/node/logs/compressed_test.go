package logs

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
)

// rotation rotates a log like the agent, a second later each time. Each file has ten lines.
type rotation struct {
	t    *testing.T
	r    *Rotator
	path string
	n    int
}

func newRotation(t *testing.T, files int) *rotation {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, lines(0, 10))
	return &rotation{t: t, path: path, r: &Rotator{Runtime: &fakeRuntime{path: path}, MaxFiles: files,
		Logger: klog.Background()}}
}

func (r *rotation) rotate() {
	r.t.Helper()
	at := time.Date(2026, 11, 21, 9, 0, r.n, 123456789, time.UTC) // of the last write
	if err := os.Chtimes(r.path, at, at); err != nil {
		r.t.Fatal(err)
	}
	if err := r.r.rotate(r.t.Context(), "c", r.path, at); err != nil {
		r.t.Fatal(err)
	}
	r.n++
	write(r.t, r.path, lines(10*r.n, 10*r.n+10))
}

// onFirstWrite calls a function at the first write.
type onFirstWrite struct {
	io.Writer
	f func()
}

func (o *onFirstWrite) Write(p []byte) (int, error) {
	if o.f != nil {
		f := o.f
		o.f = nil
		f()
	}
	return o.Writer.Write(p)
}

// A file that is compressed while older ones are read is not missing in the log.
func TestCompressedMeanwhile(t *testing.T) {
	for _, tail := range []int64{-1, 25} {
		r := newRotation(t, 9)
		for range 3 {
			r.rotate()
		}
		f, err := openFile(r.path)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		o, from := Options{}, 0
		if tail >= 0 {
			o.Tail, from = &tail, 15
		}
		rd := &reader{out: newPrinter(o, &out, nil), file: f, left: -1}
		defer rd.close()
		files, err := rotated(r.path)
		if err != nil {
			t.Fatal(err)
		}
		// The list is read before, the files after the newest was compressed.
		dir := filepath.Dir(r.path)
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := compress(d, files[2]); err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if _, err := stat(name); err != nil {
				t.Error(err)
			}
			if _, err := countLines(name); err != nil {
				t.Error(err)
			}
			if err := rd.whole(t.Context(), name, 0); err != nil {
				t.Error(err)
			}
		}
		if err := rd.out.flush(); err != nil || out.String() != numbers(0, 30) {
			t.Error(err, cmp.Diff(numbers(0, 30), out.String()))
		}
		out.Reset()
		if err := read(t.Context(), r.path, o, nil, &out, nil); err != nil || out.String() != numbers(from, 40) {
			t.Error(err, cmp.Diff(numbers(from, 40), out.String()))
		}
	}
}

// A follower that is slower than rotation and compression gets each line that is still there.
func TestFollowerThatLags(t *testing.T) {
	for rotations := range 5 {
		for kept := 2; kept < 6; kept++ {
			r := newRotation(t, kept)
			var out bytes.Buffer
			ended := make(chan struct{})
			w := &onFirstWrite{Writer: &out, f: func() { // the client reads on after all this
				defer close(ended)
				for range rotations {
					r.rotate()
				}
			}}
			if err := read(t.Context(), r.path, Options{Follow: true}, ended, w, nil); err != nil {
				t.Fatal(err)
			}
			want := numbers(0, 10)
			for n := max(1, rotations+1-kept); n <= rotations; n++ {
				want += numbers(10*n, 10*n+10)
			}
			if out.String() != want {
				t.Errorf("%d rotations, %d files: %s", rotations, kept, cmp.Diff(want, out.String()))
			}
		}
	}
}

// A compressed file that is damaged does not hide the rest of the log.
func TestDamagedCompressedFile(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"empty":    func([]byte) []byte { return nil },
		"no gzip":  func([]byte) []byte { return []byte("something else") },
		"cut":      func(b []byte) []byte { return b[:len(b)-9] },
		"zeroed":   func(b []byte) []byte { return make([]byte, len(b)) },
		"checksum": func(b []byte) []byte { b[len(b)-8] ^= 1; return b },
	} {
		for _, tail := range []int64{-1, 12} {
			path := filepath.Join(t.TempDir(), "0.log")
			old := path + ".20261121-000010.gz"
			write(t, old, lines(0, 10))
			b, err := os.ReadFile(old)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(old, damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
			write(t, path+".20261121-000020.gz", lines(10, 20))
			write(t, path, lines(20, 30))
			o, from := Options{}, 10
			if tail >= 0 {
				o.Tail, from = &tail, 18
			}
			var out bytes.Buffer
			err = read(t.Context(), path, o, nil, &out, nil)
			if want := numbers(from, 30); err != nil || !bytes.HasSuffix(out.Bytes(), []byte(want)) {
				t.Errorf("%s, tail %d: %v %s", name, tail, err, cmp.Diff(want, out.String()))
			}
		}
	}
}
