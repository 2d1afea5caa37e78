// Package processor reads what a process has taken of the processors. The
// benchmarks drive it.
package processor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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
