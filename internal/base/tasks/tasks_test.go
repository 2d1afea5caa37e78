package tasks

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name, pids, threads, load string
		want                      Count
		fails                     bool
	}{
		{"process IDs are the limit", "32768\n", "192729\n", "0.20 0.18 0.12 2/306 25343\n", Count{306, 32768}, false},
		{"threads are the limit", "4194304\n", "31456\n", "12.00 1.00 0.00 1/2711 9\n", Count{2711, 31456}, false},
		{"more than 16 bits", "4194304\n", "400000\n", "0.00 0.01 0.05 3/70000 4000001\n", Count{70000, 400000}, false},
		{"not a number", "many\n", "31456\n", "0.20 0.18 0.12 2/306 25343\n", Count{}, true},
		{"no count", "4194304\n", "31456\n", "0.20 0.18 0.12\n", Count{}, true},
		{"no file", "4194304\n", "", "0.20 0.18 0.12 2/306 25343\n", Count{}, true},
	} {
		proc := t.TempDir()
		if err := os.MkdirAll(filepath.Join(proc, "sys/kernel"), 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"sys/kernel/pid_max": c.pids, "sys/kernel/threads-max": c.threads,
			"loadavg": c.load} {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(proc, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := read(proc); got != c.want || (err != nil) != c.fails {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
	if c, err := Read(); err != nil || c.Running <= 0 || c.Running > c.Limit {
		t.Errorf("this machine: %+v, %v", c, err)
	}
}
