// Package linefile appends lines to files, such as logs of JSON objects, whose disk may be full. The access log of the
// gateway, the audit log, and the journal of the pod network use it. It must never keep a line that was not written.
package linefile

import (
	"io"
	"os"
)

// Writer appends lines. Half says that what it appends to does not end with a whole line: the disk was full, or the
// process that wrote it was killed.
type Writer struct {
	To   io.Writer
	Half bool
}

// Write writes whole lines. They do not continue a half of one: it gets its end before. n is how many bytes of the
// lines were written.
func (w *Writer) Write(lines []byte) (n int, err error) {
	all, before := lines, 0
	if w.Half {
		all, before = append([]byte{'\n'}, lines...), 1
	}
	if n, err = w.To.Write(all); n > 0 {
		w.Half = all[n-1] != '\n'
	}
	return max(n-before, 0), err
}

// Open opens a file for appending, and creates it if there is none. half reports that it does not end with a whole
// line: the disk was full, or the process that wrote it was killed. A Writer has to know it.
func Open(path string, mode os.FileMode) (f *os.File, half bool, err error) {
	if f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, mode); err != nil {
		return nil, false, err
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() == 0 {
		return f, false, nil
	}
	reader, err := os.Open(path)
	if err != nil {
		return f, false, nil // it need not be readable
	}
	defer reader.Close()
	last := make([]byte, 1)
	_, err = reader.ReadAt(last, st.Size()-1)
	return f, err == nil && last[0] != '\n', nil
}
