package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"time"

	"carob/internal/base/gctuning"
	"carob/test/bench/processor"
)

// state is what the process needs while nothing happens. Sizes are in bytes.
type state struct {
	live, heap, stacks uint64 // objects in use, the heap that holds them, goroutines' stacks
	anonymous, files   uint64 // resident: memory of its own, and pages of files: the program and etcd's database
	goroutines         int
	share              float64
}

func (s state) String() string {
	mb := func(n uint64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
	return fmt.Sprintf("resident %s (own %s, files %s), live %s in a heap of %s, stacks %s of %d goroutines, "+
		"%.2f %% of a processor", mb(s.anonymous+s.files), mb(s.anonymous), mb(s.files), mb(s.live), mb(s.heap),
		mb(s.stacks), s.goroutines, 100*s.share)
}

// look measures for the time of idle; before and after, it returns memory to the system as the product does.
func look(idle time.Duration) (state, error) {
	if err := gctuning.Settle(); err != nil {
		return state{}, err
	}
	took := processor.Time(os.Getpid())
	time.Sleep(idle)
	took = processor.Time(os.Getpid()) - took
	if err := gctuning.Settle(); err != nil {
		return state{}, err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s := state{live: m.HeapAlloc, heap: m.HeapInuse, stacks: m.StackInuse, goroutines: runtime.NumGoroutine(),
		share: took.Seconds() / idle.Seconds()}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return s, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(status)); lines.Scan(); {
		var kilobytes uint64
		if n, _ := fmt.Sscanf(lines.Text(), "RssAnon: %d kB", &kilobytes); n == 1 {
			s.anonymous = kilobytes << 10
		}
		if n, _ := fmt.Sscanf(lines.Text(), "RssFile: %d kB", &kilobytes); n == 1 {
			s.files = kilobytes << 10
		}
	}
	return s, nil
}
