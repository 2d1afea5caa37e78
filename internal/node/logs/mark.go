package logs

import (
	"context"
	"errors"
	"io"
	"io/fs"
)

// Mark is a place in a log, in the file that was the current one when the mark was made.
// The zero value is not a place.
type Mark struct {
	file   fs.FileInfo
	offset int64
}

// ErrRotated means that the file of a mark is no longer the current one.
var ErrRotated = errors.New("the log was rotated")

// End is where the log at path ends now.
func End(path string) (Mark, error) {
	f, err := openFile(path)
	if err != nil {
		return Mark{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Mark{}, err
	}
	return Mark{file: info, offset: info.Size()}, nil
}

// Same reports whether two marks are one place.
func (m Mark) Same(o Mark) bool { return sameFile(m.file, o.file) && m.offset == o.offset }

// ReadFrom writes the content of the log at path after the mark to stdout and stderr; nil
// discards one. It returns the mark up to which it has read, or ErrRotated if the rest is in
// more than one file.
func ReadFrom(ctx context.Context, path string, from Mark, stdout, stderr io.Writer) (Mark, error) {
	f, err := openFile(path)
	if err != nil {
		return Mark{}, err
	}
	r := &reader{out: newPrinter(Options{}, stdout, stderr), file: f, left: -1}
	defer r.close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return Mark{}, err
	case !sameFile(info, from.file):
		return Mark{}, ErrRotated
	}
	if _, err := f.Seek(from.offset, io.SeekStart); err != nil {
		return Mark{}, err
	}
	rest, err := r.drain(ctx, nil)
	if err == nil && len(rest) > 0 {
		err = r.out.line(rest)
	}
	return r.mark(), errors.Join(err, r.out.flush())
}

// until limits the reading to the content before a mark, unless the log was rotated since.
func (r *reader) until(m *Mark) error {
	r.left = -1
	if m == nil || r.file == nil {
		return nil
	}
	info, err := r.file.Stat()
	if err == nil && sameFile(info, m.file) {
		r.left = m.offset
	}
	return err
}

// mark is the place up to which the current file was read.
func (r *reader) mark() Mark {
	if r.file == nil {
		return Mark{}
	}
	info, err := r.file.Stat()
	if err != nil {
		return Mark{}
	}
	offset, err := r.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return Mark{}
	}
	return Mark{file: info, offset: offset}
}
