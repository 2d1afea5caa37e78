package monitor

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/wire"
)

// TestEndsAreNotDelayedByRequests: a monitor that has many requests to answer reports an end between them. Otherwise
// the processes of exec probes on an overloaded machine remain zombies, and each delays the next.
func TestEndsAreNotDelayedByRequests(t *testing.T) {
	text, err1 := os.ReadFile(filepath.Join("..", "csrc", "bin", runtime.GOARCH, "monitor"))
	programs, err2 := Load(text, text)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	m, err := programs.StartMonitor(cgroups.Entry{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Quit) // it would live on without its connection
	listener, err := Listen(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := m.Setup(PodSetup{Listener: listener, SharePID: true}); err != nil {
		t.Fatal(err)
	}
	a, err := m.call(wire.Message{Code: msgList})
	if err != nil {
		t.Fatal(err)
	}
	first := int(a.N[2]) // of the pod's PID namespace
	const requests = 100
	answers, answered := make(chan wire.Message, requests), make(chan int, 1)
	m.Listen(func(Event) { answered <- len(answers) })
	if err := unix.Kill(m.PID(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the process has ended", func() bool {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(first), "status"))
		return err == nil && strings.Contains(string(b), "\nState:\tZ")
	})
	m.mu.Lock()
	for i := range uint32(requests) {
		m.seq++
		m.waiting[m.seq] = answers
		if _, err := m.conn.Write((&wire.Message{Code: msgList, Seq: m.seq}).Append(nil)); err != nil {
			m.mu.Unlock()
			t.Fatalf("request %d: %v", i, err)
		}
	}
	m.mu.Unlock()
	if err := unix.Kill(m.PID(), unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if n := <-answered; n > requests/2 {
		t.Errorf("the end was reported after %d of %d answers", n, requests)
	}
	testwait.For(t, "all answers arrive", func() bool { return len(answers) == requests })
}
