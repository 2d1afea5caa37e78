package logs

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"carob/internal/base/securepath"
)

const (
	rotatedTime = "20060102-150405"
	compressed  = ".gz"
	unfinished  = ".tmp"
)

// rotated lists the rotated files of path, oldest first (L3.155). A file that exists both plain
// and compressed, after a crash in between, counts once.
func rotated(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	prefix := filepath.Base(path) + "."
	var names []string
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if !ok || len(strings.TrimSuffix(rest, compressed)) != len(rotatedTime) {
			continue
		}
		names = append(names, filepath.Join(filepath.Dir(path), e.Name()))
	}
	slices.Sort(names) // the plain one sorts before its compressed twin
	return slices.CompactFunc(names, func(a, b string) bool { return b+compressed == a || a+compressed == b }), nil
}

// place is the location of a log, with the kubelet's naming NAMESPACE_POD_UID/CONTAINER/N.log: a directory of the host,
// and a path below it to which pods may be able to write, so that a link there could lead anywhere.
func place(path string) (root, name string) {
	root = filepath.Dir(filepath.Dir(filepath.Dir(path)))
	return root, strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
}

// openFile opens a log to be read.
func openFile(path string) (*os.File, error) {
	root, name := place(path)
	return securepath.Open(root, name, os.O_RDONLY, 0)
}

// stat is os.Lstat for a rotated file, which may have been compressed since it was listed.
func stat(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) && !strings.HasSuffix(path, compressed) {
		return os.Lstat(path + compressed)
	}
	return info, err
}

// open opens a rotated file of either form; it may have been compressed since it was listed.
func open(path string) (io.ReadCloser, error) {
	f, err := openFile(path)
	if errors.Is(err, fs.ErrNotExist) && !strings.HasSuffix(path, compressed) {
		path += compressed
		f, err = openFile(path)
	}
	if err != nil || !strings.HasSuffix(path, compressed) {
		return f, err
	}
	return &unpacked{file: f}, nil
}

// unpacked reads a compressed file. One that is damaged, such as by a power failure, ends where it is: it must not hide
// the rest of the log.
type unpacked struct {
	file *os.File
	z    *gzip.Reader
}

func (u *unpacked) Read(p []byte) (n int, err error) {
	if u.z == nil {
		u.z, err = gzip.NewReader(bufio.NewReaderSize(u.file, 64<<10))
	}
	if err == nil {
		n, err = u.z.Read(p)
	}
	var failed *fs.PathError
	if err != nil && !errors.As(err, &failed) {
		err = io.EOF
	}
	return n, err
}

func (u *unpacked) Close() error { return u.file.Close() }

// tailOffset finds where the last n lines of a plain file begin. short is how many
// lines are missing to n; then the offset is 0.
func tailOffset(f io.ReaderAt, size, n int64) (offset, short int64, err error) {
	if n <= 0 {
		return size, 0, nil
	}
	const block = 64 << 10
	buf := make([]byte, block)
	end, left := size, n
	for end > 0 {
		start := max(0, end-block)
		part := buf[:end-start]
		if _, err := f.ReadAt(part, start); err != nil && err != io.EOF {
			return 0, 0, err
		}
		for at := len(part); at > 0; {
			i := bytes.LastIndexByte(part[:at], '\n')
			if i < 0 {
				break
			}
			at = i
			if start+int64(i) == size-1 {
				continue // the end of the last line, not the start of one
			}
			if left--; left == 0 {
				return start + int64(i) + 1, 0, nil
			}
		}
		end = start
	}
	if size > 0 {
		left-- // the first line has no end of line before it
	}
	return 0, left, nil
}

// countLines counts the lines of a log of either form.
func countLines(path string) (int64, error) {
	r, err := open(path)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	var n int64
	buf := make([]byte, 64<<10)
	for {
		k, err := r.Read(buf)
		n += int64(bytes.Count(buf[:k], []byte("\n")))
		if err == io.EOF {
			return n, nil
		} else if err != nil {
			return 0, err
		}
	}
}

func sameFile(a, b fs.FileInfo) bool { return a != nil && b != nil && os.SameFile(a, b) }
