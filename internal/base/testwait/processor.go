package testwait

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Processor returns how long f kept a processor busy. Unlike the elapsed time, that does not depend on what else runs:
// a limit far above it shows time that grows with the square of the input. What f starts in other goroutines does not
// count.
func Processor(t testing.TB, f func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	f()
	return used() - before
}
