package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// timeOut is how times are shown: of fixed width, so that lines stay aligned.
const timeOut = "2006-01-02T15:04:05.000000000Z07:00"

// Options select a part of a log; the zero value selects all of it.
type Options struct {
	Follow     bool
	Tail       *int64 // last lines; nil: all
	Since      time.Time
	Timestamps bool
	Limit      *int64 // bytes in total; nil: no limit
	Until      *Mark  // where to end; nil, or with Follow or Tail: at the end of the log
}

// ReadTo writes the log at path, with its rotated files, to stdout and stderr, and returns up to
// where it has read; nil discards one. With Follow it continues, across rotations, until ended is
// closed and everything is read, or ctx ends. Writers that have a Flush method are flushed whenever
// nothing is left to read.
func ReadTo(ctx context.Context, path string, o Options, ended <-chan struct{}, stdout, stderr io.Writer) (Mark,
	error) {
	r := &reader{out: newPrinter(o, stdout, stderr), left: -1}
	defer r.close()
	var wake <-chan struct{}
	if o.Follow {
		stop := make(chan struct{})
		defer close(stop)
		wake = watch(path, stop)
	}
	// The current file is opened before the rotated ones are listed: if it is moved
	// away in between it is read once, as the file that is open.
	f, err := openFile(path)
	if err == nil {
		r.file = f
	} else if !o.Follow || !errors.Is(err, fs.ErrNotExist) {
		return Mark{}, err
	}
	if !o.Follow && o.Tail == nil {
		if err := r.until(o.Until); err != nil {
			return Mark{}, err
		}
	}
	if err = r.old(ctx, path, o); err == nil {
		err = r.current(ctx, path, o.Follow, wake, ended)
	}
	if errors.Is(err, errFull) {
		err = nil
	}
	return r.mark(), errors.Join(err, r.out.flush())
}

// errFull means that Limit is reached.
var errFull = errors.New("limit reached")

type reader struct {
	out  *printer
	file *os.File // the current log
	left int64    // bytes of it that may still be read; negative: all
}

func (r *reader) close() {
	if r.file != nil {
		r.file.Close()
	}
}

// old reads the selected rotated files and seeks to the start of the selected part of the current one.
func (r *reader) old(ctx context.Context, path string, o Options) error {
	wanted, short := int64(-1), int64(-1) // -1: all
	var own fs.FileInfo
	if o.Tail != nil {
		wanted, short = max(*o.Tail, 0), max(*o.Tail, 0)
	}
	if r.file != nil {
		var err error
		if own, err = r.file.Stat(); err != nil {
			return err
		}
		if o.Tail != nil {
			var offset int64
			if offset, short, err = tailOffset(r.file, own.Size(), wanted); err != nil {
				return err
			}
			if _, err := r.file.Seek(offset, io.SeekStart); err != nil {
				return err
			}
		}
	}
	if short == 0 {
		return nil
	}
	files, err := rotated(path)
	if err != nil {
		return ignoreAbsent(err)
	}
	files = slices.DeleteFunc(files, func(name string) bool {
		info, err := stat(name)
		// all of it is older
		return err != nil || !info.Mode().IsRegular() || sameFile(info, own) || info.ModTime().Before(o.Since)
	})
	first, skip := 0, int64(0)
	if o.Tail != nil {
		for first = len(files); first > 0 && short > 0; {
			first--
			n, err := countLines(files[first])
			if errors.Is(err, fs.ErrNotExist) {
				first++ // removed meanwhile, and all older ones
				break
			} else if err != nil {
				return err
			}
			skip = max(0, n-short)
			short = max(0, short-n)
		}
	}
	for _, f := range files[first:] {
		if err := r.whole(ctx, f, skip); err != nil {
			return err
		}
		skip = 0
	}
	return nil
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// whole reads a rotated file but for its first lines.
func (r *reader) whole(ctx context.Context, path string, skip int64) error {
	f, err := open(path)
	if err != nil {
		return ignoreAbsent(err) // rotated away meanwhile
	}
	defer f.Close()
	lines := newLines(f)
	for {
		line, err := lines.next()
		if len(line) > 0 && skip <= 0 {
			if err := r.out.line(line); err != nil {
				return err
			}
		}
		skip--
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// current reads the rest of the log at path, and follows it.
func (r *reader) current(ctx context.Context, path string, follow bool, wake, ended <-chan struct{}) error {
	var rest []byte // an incomplete line
	for {
		over := !follow || isClosed(ended) // checked before reading, so that nothing written before is missed
		var between []string
		var next *os.File
		if r.left < 0 { // the content before a mark is in this file
			var err error
			if between, next, err = r.next(path); err != nil {
				return err
			}
		}
		var err error
		if rest, err = r.drain(ctx, rest); err != nil {
			return err
		}
		if next != nil { // rotated: nothing more is written to the old file
			r.close()
			r.file = next
			for _, name := range between {
				if err := r.whole(ctx, name, 0); err != nil {
					return err
				}
			}
			continue
		}
		if over {
			if len(rest) > 0 {
				return r.out.line(rest)
			}
			return nil
		}
		if err := r.out.flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
		case <-wake:
		}
	}
}

// next opens the file that follows the one being read, when rotation moved that away and nothing more is written to it:
// the runtime writes to the old file until it has taken the new one over, and that is known when the new one has
// content. After several rotations at once that is the oldest that was not read; compressed ones before it are between.
func (r *reader) next(path string) (between []string, next *os.File, err error) {
	now, err := os.Lstat(path)
	if err != nil {
		return nil, nil, ignoreAbsent(err)
	}
	if r.file == nil {
		r.file, err = openFile(path)
		return nil, nil, ignoreAbsent(err)
	}
	own, err := r.file.Stat()
	if err != nil || sameFile(own, now) {
		return nil, nil, err
	}
	files, err := rotated(path)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range after(files, own) {
		if !strings.HasSuffix(name, compressed) {
			f, err := openFile(name)
			if err == nil || !errors.Is(err, fs.ErrNotExist) {
				return between, f, err
			}
		}
		between = append(between, name)
	}
	if now.Size() == 0 && len(between) == 0 {
		return nil, nil, nil
	}
	f, err := openFile(path)
	return between, f, ignoreAbsent(err)
}

// after returns the rotated files after the one with this info. If that was compressed or removed meanwhile, it is
// found by its last write, whose time compression keeps.
func after(files []string, own fs.FileInfo) []string {
	later := len(files)
	for i, name := range slices.Backward(files) {
		info, err := stat(name)
		switch {
		case err != nil:
		case sameFile(info, own):
			return files[i+1:]
		case info.ModTime().After(own.ModTime()):
			later = i
		}
	}
	return files[later:]
}

// drain reads the available content. It returns what follows the last end of line.
func (r *reader) drain(ctx context.Context, rest []byte) ([]byte, error) {
	if r.file == nil {
		return rest, nil
	}
	buf := make([]byte, 64<<10)
	for ctx.Err() == nil {
		room := buf
		if r.left >= 0 {
			room = buf[:min(r.left, int64(len(buf)))]
		}
		if len(room) == 0 {
			return rest, nil
		}
		n, err := r.file.Read(room)
		if r.left >= 0 {
			r.left -= int64(n)
		}
		data := buf[:n]
		for {
			i := bytes.IndexByte(data, '\n')
			if i < 0 {
				break
			}
			line := data[:i+1]
			if len(rest) > 0 {
				line = lengthen(rest, line)
				rest = nil
			}
			if err := r.out.line(line); err != nil {
				return nil, err
			}
			data = data[i+1:]
		}
		rest = lengthen(rest, data)
		switch {
		case err == io.EOF:
			again, err := r.rewind()
			if !again || err != nil {
				return rest, err
			}
			rest = nil // it was a part of what is gone
		case err != nil:
			return nil, err
		}
	}
	return nil, ctx.Err()
}

// rewind goes to the start of a file that others have truncated, such as logrotate with copytruncate: its writer
// appends, so new content is there. It reports whether it did.
func (r *reader) rewind() (bool, error) {
	if r.left >= 0 {
		return false, nil // up to a mark in content that is gone
	}
	at, err := r.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return false, err
	}
	info, err := r.file.Stat()
	if err != nil || info.Size() >= at {
		return false, err
	}
	_, err = r.file.Seek(0, io.SeekStart)
	return err == nil, err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// printer writes entries as users see them.
type printer struct {
	o      Options
	out    map[Stream]*bufio.Writer
	raw    []io.Writer
	begun  map[Stream]bool // the last entry of the stream was partial
	budget int64           // bytes that may still be written; negative: any number
}

func newPrinter(o Options, stdout, stderr io.Writer) *printer {
	p := &printer{o: o, out: make(map[Stream]*bufio.Writer), begun: make(map[Stream]bool), budget: -1}
	if o.Limit != nil {
		p.budget = max(*o.Limit, 0)
	}
	for stream, w := range map[Stream]io.Writer{Stdout: stdout, Stderr: stderr} {
		if w == nil {
			continue
		}
		if len(p.raw) == 1 && p.raw[0] == w {
			for _, b := range p.out {
				p.out[stream] = b // one buffer for both streams keeps the order
			}
			continue
		}
		p.out[stream] = bufio.NewWriterSize(w, 32<<10)
		p.raw = append(p.raw, w)
	}
	return p
}

// line writes one line of the file; invalid lines are skipped.
func (p *printer) line(line []byte) error {
	if p.budget == 0 {
		return errFull
	}
	e, _ := parse(line) // an invalid line has no stream; it must not hide the others
	w := p.out[e.stream]
	if w == nil {
		return nil
	}
	if !p.o.Since.IsZero() || p.o.Timestamps {
		at, ok := e.at()
		if !ok || at.Before(p.o.Since) {
			return nil
		}
		if p.o.Timestamps && !p.begun[e.stream] {
			if err := p.write(w, []byte(at.Format(timeOut)+" ")); err != nil {
				return err
			}
		}
	}
	p.begun[e.stream] = e.partial
	if err := p.write(w, e.text); err != nil || e.partial {
		return err
	}
	return p.write(w, []byte("\n"))
}

func (p *printer) write(w io.Writer, text []byte) error {
	if p.budget < 0 {
		_, err := w.Write(text)
		return err
	}
	n := min(int64(len(text)), p.budget)
	p.budget -= n
	if _, err := w.Write(text[:n]); err != nil {
		return err
	}
	if p.budget == 0 { // at once: with Follow, the next line may never come
		return errFull
	}
	return nil
}

func (p *printer) flush() error {
	var errs []error
	for _, b := range p.out {
		errs = append(errs, b.Flush())
	}
	for _, w := range p.raw {
		if f, ok := w.(interface{ Flush() }); ok {
			f.Flush()
		}
	}
	return errors.Join(errs...)
}

// Tail returns the end of a log without times and tags: at most so many lines, and
// of these at most the last so many bytes (L3.151).
func Tail(path string, lines int, size int64) (string, error) {
	var out bytes.Buffer
	f, err := openFile(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	offset, _, err := tailOffset(f, info.Size(), int64(lines))
	if err != nil {
		return "", err
	}
	p := newPrinter(Options{}, &out, &out)
	all := newLines(io.NewSectionReader(f, offset, info.Size()-offset))
	for err == nil {
		var line []byte
		if line, err = all.next(); len(line) > 0 {
			if err := p.line(line); err != nil {
				return "", err
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		return "", err
	}
	if err := p.flush(); err != nil {
		return "", err
	}
	text := out.Bytes()
	return string(text[max(0, int64(len(text))-size):]), nil
}
