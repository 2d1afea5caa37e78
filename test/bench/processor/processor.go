// Package processor reads the processor time that a process has used. The benchmarks drive it.
package processor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Time is what all threads of a process have run, to the nanosecond; those that
// have ended are missing.
func Time(pid int) time.Duration {
	var sum time.Duration
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		ran, _, _ := strings.Cut(string(b), " ")
		ns, _ := strconv.ParseInt(ran, 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}

// Total is what a process has run, with its threads that have ended, to the nanosecond; 0 if there is no such process.
func Total(pid int) time.Duration {
	const sched = 2 // CPUCLOCK_SCHED, the clock of clock_getcpuclockid(3)
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
