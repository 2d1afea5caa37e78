// Package accesslog writes the gateway's access log: lines to a file that may be rotated, without delaying a request.
package accesslog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/base/linefile"
)

// Queue is how many lines wait for the file; more are dropped and counted.
const Queue = 8192

const logCheck = time.Second

// MostText is the most bytes of a text that a client chooses.
const MostText = 2048

// Text cuts a text of a client, and makes it valid UTF-8.
func Text(s string) string {
	if len(s) > MostText {
		s = s[:MostText]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Stdout as the path of an access log is the standard output.
const Stdout = "-"

// Log is an access log. A slow file never delays a request.
type Log struct {
	path  string
	lines chan []byte
	lost  func()
}

// New returns a log of which queue lines may wait. lost is called for each line that is lost. Nothing is written before
// Run.
func New(path string, queue int, lost func()) *Log {
	return &Log{path: path, lines: make(chan []byte, queue), lost: lost}
}

// Add writes a line, which the log keeps. It does not wait.
func (l *Log) Add(line []byte) {
	select {
	case l.lines <- line:
	default:
		l.lost()
	}
}

// Run writes until ctx ends, then what waits.
func (l *Log) Run(ctx context.Context) {
	out := &logFile{path: l.path}
	defer out.close()
	for {
		select {
		case line := <-l.lines:
			l.store(ctx, out, line)
		case <-ctx.Done():
			for {
				select {
				case line := <-l.lines:
					l.store(ctx, out, line)
				default:
					l.end(ctx, out, out.flush())
					return
				}
			}
		}
		if len(l.lines) == 0 {
			l.end(ctx, out, out.flush())
		}
	}
}

func (l *Log) store(ctx context.Context, out *logFile, line []byte) { l.end(ctx, out, out.write(line)) }

// end reports the lines that a write has lost. That the file cannot be written is logged once until it can be.
func (l *Log) end(ctx context.Context, out *logFile, err error) {
	for ; out.lost > 0; out.lost-- {
		l.lost()
	}
	if err != nil && !out.failing {
		out.failing = true
		klog.FromContext(ctx).Error(err, "The access log of the gateway cannot be written; its lines are lost")
	}
}

// most is how many bytes of lines are written at once.
const most = 64 << 10

// logFile is a file that a log rotation may rename or remove: then it is created again.
type logFile struct {
	path    string
	file    io.Closer // nil: not open
	out     linefile.Writer
	stat    func() (os.FileInfo, error)
	buf     []byte // lines that were not written yet
	lost    int    // lines that could not be written, until they are reported
	checked time.Time
	failing bool // nothing was written since a write has failed
}

func (f *logFile) open() error {
	if f.path == Stdout {
		f.file, f.out.To = stdout{}, os.Stdout
		return nil
	}
	file, half, err := linefile.Open(f.path, 0o640)
	if err != nil {
		return fmt.Errorf("open the access log: %w", err)
	}
	f.file, f.stat, f.out = file, file.Stat, linefile.Writer{To: file, Half: half}
	return nil
}

// stdout is the standard output, which stays open.
type stdout struct{}

func (stdout) Close() error { return nil }

// write keeps a line for the next flush, which it calls if there are many bytes.
func (f *logFile) write(line []byte) error {
	if now := time.Now(); f.path != Stdout && now.Sub(f.checked) > logCheck {
		f.checked = now
		if f.file != nil && f.moved() {
			err := f.flush() // they belong to the file that was moved
			f.close()
			if err != nil {
				f.lost++
				return err
			}
		}
	}
	if f.file == nil {
		if err := f.open(); err != nil {
			f.lost++
			return err
		}
	}
	f.buf = append(f.buf, line...)
	if len(f.buf) < most {
		return nil
	}
	return f.flush()
}

// flush writes the lines that are kept. What cannot be written is lost: a slow or full disk must not take memory.
func (f *logFile) flush() error {
	if len(f.buf) == 0 {
		return nil
	}
	lines := f.buf
	f.buf = f.buf[:0]
	n, err := f.out.Write(lines)
	if err != nil {
		f.lost += bytes.Count(lines[n:], []byte{'\n'})
		f.close() // it may be opened elsewhere: its directory was replaced, or its disk
		return fmt.Errorf("write the access log: %w", err)
	}
	f.failing = false
	return nil
}

// moved reports whether another file has the path, or none.
func (f *logFile) moved() bool {
	have, err := f.stat()
	if err != nil {
		return true
	}
	there, err := os.Stat(f.path)
	return errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(have, there)
}

func (f *logFile) close() {
	if f.file == nil {
		return
	}
	_ = f.flush()
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file = nil
}
