package images

import (
	"archive/tar"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// maxReserve is the most space that images leave free.
const maxReserve = 1 << 30

// diskSpace is how much images may use of the store's file system: all but a tenth of it, or all but a
// gigabyte, so that an image cannot take the disk from the API's store, the logs, and running
// containers. It reads the free space each time.
type diskSpace struct {
	dir string
}

// noSpace is the error of an image that does not fit.
type noSpace struct{ text string }

func (e *noSpace) Error() string { return e.text }

// bytes checks for space for n bytes.
func (r *diskSpace) bytes(n int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(r.dir, &st); err != nil {
		return fmt.Errorf("measuring the room in %s: %w", r.dir, err)
	}
	free, total := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	reserve := min(total/10, maxReserve)
	if n > free-reserve {
		return &noSpace{fmt.Sprintf("no space in %s: %s more are needed, %s are free, of which %s are reserved", r.dir,
			size(n), size(free), size(reserve))}
	}
	// Some file systems have no fixed number of inodes and report 0.
	if st.Files > 0 && st.Ffree <= st.Files/20 {
		return &noSpace{fmt.Sprintf("no space in %s: only %d of its %d files are free", r.dir, st.Ffree, st.Files)}
	}
	return nil
}

// file checks for an inode for an archive's next file.
func (r *diskSpace) file(h *tar.Header) error {
	if h.Size < 0 {
		return fmt.Errorf("file %q has size %d", h.Name, h.Size)
	}
	return r.bytes(h.Size)
}

// reader is a stream that fails when its content no longer fits on the disk.
func (r *diskSpace) reader(from io.Reader) io.Reader { return &spaceReader{space: r, r: from} }

// spaceStep is how often a stream checks the disk.
const spaceStep = 16 << 20

type spaceReader struct {
	space *diskSpace
	r     io.Reader
	left  int64 // until the next check
}

func (r *spaceReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		if err := r.space.bytes(spaceStep); err != nil {
			return 0, err
		}
		r.left = spaceStep
	}
	n, err := r.r.Read(p)
	r.left -= int64(n)
	return n, err
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
