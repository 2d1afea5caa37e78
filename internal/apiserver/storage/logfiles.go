package storage

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// logSegment is the size of a file of the log, in bytes. etcd's own would be 64 MB; all of it is written ahead.
const logSegment = 8 << 20

func init() { wal.SegmentSizeBytes = logSegment }

const (
	logStep  = 256 << 10 // how much of a file is written ahead at a time: a sync of the log may wait for it
	pageSize = 4 << 10   // at most that of any kernel
)

// logFiles writes the files of the log to the disk before the log does.
//
// etcd reserves their space with fallocate. The first write to each block of such space changes the metadata of the
// file, so that the sync of this write waits for the file system's journal, and with it for what all others have
// written to this disk. When the blocks were written once, a sync writes them and nothing else.
//
// The log may write to the same page at the same moment. So the pages are not overwritten: each is made dirty by an
// atomic addition of zero in a shared mapping, which changes no byte, whatever else happens to it.
//
//	idle ──the housekeeping finds a new file──▶ one goroutine fills it ──▶ idle;   close: it ends early
type logFiles struct {
	dir   string
	touch func(f *os.File, at, size int64) error

	mu      sync.Mutex
	filled  map[uint64]bool // by inode: files get other names
	filling bool
	closed  bool
	done    sync.WaitGroup
}

func newLogFiles(dir string, off bool) *logFiles {
	return &logFiles{dir: dir, touch: touch, filled: map[uint64]bool{}, closed: off}
}

// overwrites reports whether the file system of a directory writes to a block in its place. Others, such as btrfs, take
// a new block each time: a file that is written ahead would lose the space that was reserved for it.
func overwrites(dir string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return false
	}
	return fs.Type == unix.EXT4_SUPER_MAGIC || fs.Type == unix.XFS_SUPER_MAGIC
}

// look begins to fill the files that the log writes to next, if there are new ones. It does not wait for the disk.
func (l *logFiles) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.filling || l.closed {
		return
	}
	names := l.unfilled()
	if len(names) == 0 {
		return
	}
	l.filling = true
	l.done.Go(func() {
		var err error
		for _, name := range names {
			err = errors.Join(err, l.fill(name))
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.filling = false
		if err != nil { // the log works without it
			l.closed = true
			klog.Background().V(2).Info("The files of the log are not written ahead", "directory", l.dir, "err", err)
		}
	})
}

// unfilled returns which files were not filled: of the newest one, and of those that etcd prepares. It forgets all
// others. mu is held.
func (l *logFiles) unfilled() []string {
	logs, _ := filepath.Glob(filepath.Join(l.dir, "*.wal")) // fails for bad patterns only
	names, _ := filepath.Glob(filepath.Join(l.dir, "*.tmp"))
	if len(logs) > 0 {
		names = append([]string{slices.Max(logs)}, names...) // their names begin with their number
	}
	filled := map[uint64]bool{}
	names = slices.DeleteFunc(names, func(name string) bool {
		var is unix.Stat_t
		if unix.Stat(name, &is) != nil {
			return true // it got another name
		}
		if l.filled[is.Ino] {
			filled[is.Ino] = true
		}
		return l.filled[is.Ino]
	})
	l.filled = filled
	return names
}

// fill writes a file, as it is, to the disk.
func (l *logFiles) fill(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) { // it has another name now, and its turn comes again
		return nil
	}
	if err != nil {
		return fmt.Errorf("write a file of the log ahead: %w", err)
	}
	defer f.Close()
	var is unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &is); err != nil {
		return fmt.Errorf("write %s ahead: %w", name, err)
	}
	end := min(is.Size, logSegment)
	for at := int64(0); at < end; at += logStep {
		if l.stopped() {
			return nil
		}
		if err := l.touch(f, at, min(logStep, end-at)); err != nil {
			return fmt.Errorf("write %s ahead: %w", name, err)
		}
	}
	// etcd makes a file first and then gives it its size.
	l.mu.Lock()
	defer l.mu.Unlock()
	l.filled[is.Ino] = end == logSegment
	return nil
}

func (l *logFiles) stopped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// close returns when no file is being filled.
func (l *logFiles) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.done.Wait()
}

// touch makes the pages of a part of a file dirty, without any change of them, and writes them to the disk.
func touch(f *os.File, at, size int64) (err error) {
	pages, err := unix.Mmap(int(f.Fd()), at, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	err = touchAll(pages)
	return cmp.Or(err, unix.Munmap(pages),
		unix.SyncFileRange(int(f.Fd()), at, size,
			unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER))
}

// touchAll returns an error if the disk has none for a page.
func touchAll(pages []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	for i := 0; i < len(pages); i += pageSize {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&pages[i])), 0)
	}
	return nil
}
