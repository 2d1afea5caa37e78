// Package accesslog writes the gateway's access log: lines to a file that may be rotated, without delaying a request.
package accesslog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/klog/v2"
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
					return
				}
			}
		}
		if len(l.lines) == 0 {
			l.logOnce(ctx, out, out.flush())
		}
	}
}

func (l *Log) store(ctx context.Context, out *logFile, line []byte) {
	if err := out.write(line); err != nil {
		l.lost()
		l.logOnce(ctx, out, err)
	}
}

// logOnce logs that the file cannot be written, once until it can be written again.
func (l *Log) logOnce(ctx context.Context, out *logFile, err error) {
	if err != nil && !out.failing {
		klog.FromContext(ctx).Error(err, "The access log of the gateway cannot be written; its lines are lost")
	}
	out.failing = err != nil
}

// logFile is a file that a log rotation may rename or remove: then it is created again.
type logFile struct {
	path    string
	file    *os.File
	buf     *bufio.Writer
	checked time.Time
	failing bool
}

func (f *logFile) open() error {
	if f.path == Stdout {
		f.buf = bufio.NewWriterSize(os.Stdout, 64<<10)
		return nil
	}
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return fmt.Errorf("open the access log: %w", err)
	}
	f.file, f.buf = file, bufio.NewWriterSize(file, 64<<10)
	return nil
}

func (f *logFile) write(line []byte) error {
	if now := time.Now(); f.path != Stdout && now.Sub(f.checked) > logCheck {
		f.checked = now
		if f.file != nil && f.moved() {
			f.close()
		}
	}
	if f.buf == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	if _, err := f.buf.Write(line); err != nil {
		f.close() // a bufio.Writer keeps its first error
		return fmt.Errorf("write the access log: %w", err)
	}
	return nil
}

// moved reports whether another file has the path, or none.
func (f *logFile) moved() bool {
	have, err := f.file.Stat()
	if err != nil {
		return true
	}
	there, err := os.Stat(f.path)
	return errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(have, there)
}

func (f *logFile) flush() error {
	if f.buf == nil {
		return nil
	}
	if err := f.buf.Flush(); err != nil {
		f.close()
		return fmt.Errorf("write the access log: %w", err)
	}
	return nil
}

func (f *logFile) close() {
	if f.buf != nil {
		_ = f.buf.Flush()
	}
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file, f.buf = nil, nil
}
