// Package memory makes the start of the process quick and the idle process small.
// Whoever runs for long calls Follow when the start is over; it must never be
// needed for anything to work.
package memory

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// A start allocates much that stays: to collect it again and again frees
	// little and took a third of the processor time until the cluster was ready.
	startPercent = 400
	// Go's own choice. With half of it the collector takes 17 % of the processor
	// time of a burst of pods instead of 10 %, and the idle process is not smaller.
	settledPercent = 100
)

// The packages that carob is linked from allocate in their own initialisation,
// so this one has to come before them. Go initialises in the order of import
// paths what has nothing left to wait for.
func init() { pace(startPercent) }

// pace leaves a choice of the user's alone.
func pace(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// releases are what gives up memory when the process becomes quiet.
var releases struct {
	mu sync.Mutex
	of map[*func()]struct{}
}

// OnSettle has release called whenever the process settles, until the returned function
// is called. It is to let go of what was kept for speed and can be had again, and not to
// wait for anything.
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

// Settle gives back to the system what only the start, or a burst, needed: garbage, what
// OnSettle's functions let go of, and the pages of the program that are not used any
// more. It takes some 20 ms of one core.
func Settle() error {
	pace(settledPercent)
	releases.mu.Lock()
	for release := range releases.of {
		(*release)()
	}
	releases.mu.Unlock()
	debug.FreeOSMemory()
	return releaseProgram()
}

// releaseProgram drops the pages of the program's code and constants from the
// process. They stay in the page cache while the system has room for them, and
// what is used again comes back from there page by page.
func releaseProgram() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("read own memory map: %w", err)
	}
	for _, r := range unchanged(maps, exe) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, r.start, r.end-r.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release pages of %s: %w", exe, errno)
		}
	}
	return nil
}

// span is a range of addresses.
type span struct{ start, end uintptr }

// unchanged returns the mappings of a file that nobody may write to and of which
// no page ever was written: only those may be dropped without losing anything.
func unchanged(smaps []byte, file string) []span {
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
		if n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %d %s", &s.start, &s.end, &perms, &offset, &rest, &inode, &path); n >= 6 {
			candidate = nil
			if path == file && (perms == "r--p" || perms == "r-xp") {
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
