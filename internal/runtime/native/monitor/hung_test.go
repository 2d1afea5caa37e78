package monitor

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/wire"
)

// A monitor that hangs reads no requests, and its socket becomes full: each exec ends with its own limit all the same.
// When the monitor goes on, all that it still starts is killed, and nothing is left.
func TestExecsOfAHungMonitor(t *testing.T) {
	conn, theirs := connection(t)
	before := runtime.NumGoroutine()
	m := newMonitor(conn, nil)
	m.timeout = time.Hour
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	start := ExecStart{ID: "c", Helper: null, Spec: null, Status: null, Stdio: [3]*os.File{null, null, null}}
	start.Quiet = true
	quiet, err := m.Exec(t.Context(), start)
	if err != nil {
		t.Fatal(err)
	}
	quiet.End()
	limited := func(quiet bool, limit time.Duration) (*Exec, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		start.Quiet = quiet
		return m.Exec(ctx, start)
	}
	if _, err := limited(false, 100*time.Millisecond); !errors.Is(err, errSilent) {
		t.Fatal(err)
	}
	execs := 2
	var last *Exec
	for ; ; execs++ {
		x, err := limited(true, time.Second)
		if errors.Is(err, errFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last = x
	}
	for range 3 {
		if _, err := limited(false, time.Millisecond); !errors.Is(err, errFull) {
			t.Error(err)
		}
	}
	last.End() // there is no room for its kill yet
	notKilled := map[int64]bool{int64(quiet.seq): true, int64(quiet.seq) + 2: true, int64(last.seq): true}

	raw, err := theirs.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	answer := func(r wire.Message) {
		t.Helper()
		if _, err := theirs.Write(r.Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	for started := 0; started < execs || len(notKilled) > 0; {
		r, err := receiveMessage(raw)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case r.Code == msgKill:
			delete(notKilled, r.N[1])
			answer(wire.Message{Code: replyDone, Seq: r.Seq})
		case r.N[0]&flagQuiet == 0:
			started++
			answer(wire.Message{Code: replyDone, Seq: r.Seq, N: [4]int64{0, 42}})
		default:
			started++
			answer(wire.Message{Code: eventExecExit, Seq: r.Seq})
		}
	}
	testwait.For(t, "nothing is waited for", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.waiting) == 0 && len(m.execs) == 0
	})
	m.Close()
	testwait.For(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}
