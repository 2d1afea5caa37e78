// Package logs reads, follows and rotates container logs in the CRI format
// (L3.155). The streaming server reads, the node agent runs the Rotator and uses
// Tail for termination messages. It must not depend on which program writes the files.
//
// Contract: docs/spec/pod-lifecycle.md.
package logs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// longestLine is how much of a line of a log file is read, in bytes. Runtimes split what containers write into lines of
// 16 KiB; only a file that a runtime has not written has longer ones, and would take all memory.
const longestLine = 1 << 20

// lengthen appends the next part of a line, but not above longestLine.
func lengthen(line, part []byte) []byte {
	return append(line, part[:min(len(part), max(0, longestLine-len(line)))]...)
}

// lineReader reads the lines of a log file.
type lineReader struct{ r *bufio.Reader }

func newLines(r io.Reader) lineReader { return lineReader{bufio.NewReaderSize(r, 64<<10)} }

// next is the next line with its end, or the beginning of one that is too long. What follows the last end of line comes
// with io.EOF.
func (l lineReader) next() ([]byte, error) {
	var line []byte
	for {
		part, err := l.r.ReadSlice('\n')
		line = lengthen(line, part)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err //nolint:wrapcheck // as bufio.Reader
		}
	}
}

// Stream is where a container wrote.
type Stream string

// The two streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// entry is one line of a log file.
type entry struct {
	time    []byte // RFC 3339, as written
	stream  Stream
	partial bool   // the next entry of the stream continues the same line
	text    []byte // without the end of line
}

var errFormat = errors.New("not a log line in the CRI format")

// parse reads "<time> <stream> <tags> <text>"; tags are separated by ":" and the
// first one is P (partial) or F (full).
func parse(line []byte) (entry, error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	var e entry
	var ok bool
	var stream, tags []byte
	if e.time, line, ok = bytes.Cut(line, []byte(" ")); !ok || len(e.time) == 0 {
		return entry{}, fmt.Errorf("%w: no time", errFormat)
	}
	if stream, line, ok = bytes.Cut(line, []byte(" ")); !ok {
		return entry{}, fmt.Errorf("%w: no stream", errFormat)
	}
	switch e.stream = Stream(stream); e.stream {
	case Stdout, Stderr:
	default:
		return entry{}, fmt.Errorf("%w: stream %q", errFormat, stream)
	}
	if tags, e.text, ok = bytes.Cut(line, []byte(" ")); !ok {
		return entry{}, fmt.Errorf("%w: no tags", errFormat)
	}
	tag, _, _ := bytes.Cut(tags, []byte(":"))
	switch string(tag) {
	case "F":
	case "P":
		e.partial = true
	default:
		return entry{}, fmt.Errorf("%w: tag %q", errFormat, tag)
	}
	return e, nil
}

// at is when the line was written; not ok when its time can't be read.
func (e entry) at() (at time.Time, ok bool) {
	at, err := time.Parse(time.RFC3339Nano, string(e.time))
	return at, err == nil
}
