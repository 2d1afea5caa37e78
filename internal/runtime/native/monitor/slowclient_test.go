package monitor

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/wire"
)

// TestSlowClient: a monitor loses no answer when its client sends more requests than the answers that fit into its
// socket, and reads none meanwhile, as carob does while a thousand execs start. A client that ends instead leaves
// nothing behind.
func TestSlowClient(t *testing.T) {
	text, err1 := os.ReadFile(filepath.Join("..", "csrc", "bin", runtime.GOARCH, "monitor"))
	programs, err2 := Load(text, text)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	// More than the answers that fit into a socket (208 to 277), fewer than it takes when the monitor stops reading.
	const requests = 300
	flooded := func(t *testing.T) (*Monitor, chan wire.Message) {
		t.Helper()
		m, err := programs.StartMonitor(cgroups.Entry{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		answers := make(chan wire.Message, requests)
		m.mu.Lock() // handle waits
		defer m.mu.Unlock()
		if err := m.conn.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for i := range uint32(requests) {
			m.waiting[i+1] = answers
			if _, err := m.conn.Write((&wire.Message{Code: msgList, Seq: i + 1}).Append(nil)); err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
		}
		testwait.For(t, "the monitor waits for its client", func() bool { return asleep(t, m.PID()) })
		return m, answers
	}
	t.Run("reads late", func(t *testing.T) {
		_, answers := flooded(t)
		testwait.For(t, "all answers arrive", func() bool { return len(answers) == requests })
		for i := range uint32(requests) {
			if a := <-answers; a.Seq != i+1 {
				t.Fatalf("answer %d has the number %d", i+1, a.Seq)
			}
		}
	})
	t.Run("ends", func(t *testing.T) {
		m, _ := flooded(t)
		m.conn.Close()
		testwait.For(t, "the monitor ends", func() bool { return !exists(m.PID()) })
	})
}

// asleep reports whether a process waits for an event.
func asleep(t *testing.T, pid int) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Contains(string(b), "\nState:\tS")
}
