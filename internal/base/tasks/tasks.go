// Package tasks counts the processes and threads of the machine, and how many of them the kernel admits.
package tasks

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Count is how many processes and threads exist, and how many can.
type Count struct{ Running, Limit int64 }

// Read counts those of this machine.
func Read() (Count, error) { return read("/proc") }

// read counts from the files of a proc file system. Sysinfo's count has 16 bits only.
func read(proc string) (Count, error) {
	var c Count
	for _, file := range []string{"sys/kernel/pid_max", "sys/kernel/threads-max"} { // both limit the whole machine
		text, err := os.ReadFile(filepath.Join(proc, file))
		if err != nil {
			return Count{}, fmt.Errorf("read how many processes the kernel admits: %w", err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return Count{}, fmt.Errorf("read how many processes the kernel admits: %s: %w", file, err)
		}
		if c.Limit == 0 || n < c.Limit {
			c.Limit = n
		}
	}
	text, err := os.ReadFile(filepath.Join(proc, "loadavg"))
	if err != nil {
		return Count{}, fmt.Errorf("count the processes of the machine: %w", err)
	}
	var unused string
	var runnable int64
	if _, err := fmt.Sscanf(string(text), "%s %s %s %d/%d", &unused, &unused, &unused, &runnable,
		&c.Running); err != nil {
		return Count{}, fmt.Errorf("count the processes of the machine: loadavg is %q: %w", text, err)
	}
	return c, nil
}
