// Package gctuning tunes the garbage collector: it makes the start of the process fast and the idle
// process small. Long-running commands call Follow when the start is over; nothing may depend on it.
package gctuning

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// A start allocates much that stays in use: repeated collections free little and took a third
	// of the CPU time of a start.
	startPercent = 400
	// Half of Go's default, for the first collections after a quiet time: the garbage before them fits into what is
	// free in the pages of the heap, so that a short burst hardly takes more pages. Later ones see tuner.
	settledPercent = 50
	// Settle collects garbage as often. The first collection halves the stacks that are used to less than a quarter,
	// and what sync.Pools hold is free at the second one.
	settleCollections = 2
)

// The packages that carob imports allocate in their own initialization, so this package must be
// initialized before them. Go initializes packages without uninitialized dependencies in the order
// of their import paths.
func init() { setPercent(startPercent) }

// setPercent sets how much the heap grows between two collections. It does not override the user's setting.
func setPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// releases are the functions of OnSettle.
var releases struct {
	mu sync.Mutex
	of map[*func()]struct{}
}

// OnSettle registers a function that is called at each Settle, until the returned function is
// called. It should release caches that can be filled again, and must not wait.
func OnSettle(release func()) (stop func()) {
	releases.mu.Lock()
	defer releases.mu.Unlock()
	if releases.of == nil {
		releases.of = map[*func()]struct{}{}
	}
	id := &release
	releases.of[id] = struct{}{}
	return func() {
		releases.mu.Lock()
		defer releases.mu.Unlock()
		delete(releases.of, id)
	}
}

// Settle returns memory to the system that only the start, or a burst, needed: garbage, what
// OnSettle's functions release, unused stacks, and the pages of the program that are no longer
// used. It takes about 50 ms of one core.
func Settle() error {
	setPercent(settledPercent)
	releases.mu.Lock()
	for release := range releases.of {
		(*release)()
	}
	releases.mu.Unlock()
	for range settleCollections - 1 {
		runtime.GC()
	}
	debug.FreeOSMemory() // the last collection
	return releaseProgram()
}

// releaseProgram removes the pages of the program's code and constants from the process. They stay
// in the page cache while the system has free memory, and are mapped again page by page when they
// are used.
func releaseProgram() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find the path of the carob program: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("read own memory map: %w", err)
	}
	return drop(exe, unchanged(maps, exe))
}

// ReleaseMapped removes the pages of a read-only mapped file, such as a database, from the
// process, as Settle does with those of the program. The caller ensures that the mapping stays
// until ReleaseMapped returns: otherwise the content of a later mapping at the same address
// would be lost.
func ReleaseMapped(file string) error {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("read own memory map: %w", err)
	}
	return drop(file, shared(maps, file))
}

func drop(file string, pages []span) error {
	for _, r := range pages {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, r.start, r.end-r.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release pages of %s: %w", file, errno)
		}
	}
	return nil
}

// span is a range of addresses.
type span struct{ start, end uintptr }

// unchanged returns the mappings of a file that are read-only and have no modified page: only those
// can be dropped without loss.
func unchanged(smaps []byte, file string) []span { return mappings(smaps, file, "r--p", "r-xp") }

// shared returns the mappings of a file that are read-only and shared: their pages are those of the
// page cache, modified or not.
func shared(smaps []byte, file string) []span { return mappings(smaps, file, "r--s") }

func mappings(smaps []byte, file string, access ...string) []span {
	var (
		out       []span
		candidate *span
	)
	for lines := bufio.NewScanner(bytes.NewReader(smaps)); lines.Scan(); {
		var (
			s            span
			perms, path  string
			offset, rest string
			inode, kB    int
		)
		line := lines.Text()
		if n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %d %s", &s.start, &s.end, &perms, &offset, &rest, &inode,
			&path); n >= 6 {
			candidate = nil
			if path == file && slices.Contains(access, perms) {
				candidate = &s
			}
			continue
		}
		if n, _ := fmt.Sscanf(line, "Anonymous: %d kB", &kB); n == 1 && kB == 0 && candidate != nil {
			out = append(out, *candidate)
		}
	}
	return out
}
