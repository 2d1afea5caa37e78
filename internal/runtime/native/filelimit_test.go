package native

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The monitor of a pod may open as many files as carob may at most; containers and commands in them have the limit of
// the shell that started carob.
func TestLimitOfFiles(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	const soft = 500
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: soft, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	sb, sbc := w.sandbox("files")
	id := w.run(sb, sbc, "c", func(c *cri.ContainerConfig) { c.Command = []string{"sleep", "1000"} })
	s, err := w.r.sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	limits := func(text []byte) []string {
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
				return strings.Fields(rest)[:2]
			}
		}
		return nil
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", s.rec.Monitor))
	if want := fmt.Sprint([]uint64{was.Max, was.Max}); err != nil || fmt.Sprint(limits(own)) != want {
		t.Errorf("the monitor's are %v, want %s, %v", limits(own), want, err)
	}
	x, err := w.exec(id, "cat", "/proc/1/limits")
	if want := fmt.Sprint([]uint64{soft, was.Max}); err != nil || fmt.Sprint(limits(x.Stdout)) != want {
		t.Errorf("the container's are %v, want %s, %v", limits(x.GetStdout()), want, err)
	}
	x, err = w.exec(id, "cat", "/proc/self/limits")
	if want := fmt.Sprint([]uint64{soft, was.Max}); err != nil || fmt.Sprint(limits(x.Stdout)) != want {
		t.Errorf("a command's are %v, want %s, %v", limits(x.GetStdout()), want, err)
	}
}
