package monitor

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/wire"
)

// A monitor that answers after the caller has given up leaves neither a process that is not waited for nor an entry.
func TestAnswersThatComeTooLate(t *testing.T) {
	conn, theirs := connection(t)
	m := newMonitor(conn, nil)
	defer m.Close()
	m.timeout = time.Millisecond
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	requests := func() wire.Message {
		t.Helper()
		raw, err := theirs.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		r, err := receiveMessage(raw)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if _, err := m.Exec(t.Context(), ExecStart{ID: "c", Helper: null, Spec: null, Status: null,
		Stdio: [3]*os.File{null, null, null}}); !errors.Is(err, errSilent) {
		t.Fatal(err)
	}
	start := requests()
	if _, err := m.List(); !errors.Is(err, errSilent) {
		t.Fatal(err)
	}
	requests()
	answer := wire.Message{Code: replyDone, Seq: start.Seq, N: [4]int64{0, 42}}
	if _, err := theirs.Write(answer.Append(nil)); err != nil {
		t.Fatal(err)
	}
	kill := requests()
	if kill.Code != msgKill || kill.N[0] != int64(unix.SIGKILL) || kill.N[1] != int64(start.Seq) {
		t.Errorf("after the late answer: %+v", kill)
	}
	testwait.For(t, "nothing is waited for", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.waiting) == 0 && len(m.execs) == 0
	})
}

// Of a quiet exec only its end is reported, or that it did not start. A monitor of an earlier release answers
// nevertheless.
func TestQuietExec(t *testing.T) {
	conn, theirs := connection(t)
	m := newMonitor(conn, nil)
	defer m.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct {
		name    string
		reports []wire.Message
		want    Ended
	}{
		{"ends", []wire.Message{{Code: eventExecExit, N: [4]int64{7}}}, Ended{Code: 7}},
		{"old monitor", []wire.Message{{Code: replyDone, N: [4]int64{0, 42}}, {Code: eventExecExit, N: [4]int64{8}}},
			Ended{Code: 8}},
		{"not started", []wire.Message{{Code: replyDone, N: [4]int64{int64(unix.ESRCH)}}}, Ended{Err: unix.ESRCH}},
	} {
		x, err := m.Exec(t.Context(), ExecStart{ID: "c", Helper: null, Spec: null, Status: null,
			Stdio: [3]*os.File{null, null, null}, Quiet: true})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := theirs.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		request, err := receiveMessage(raw)
		if err != nil || request.Code != msgExec || request.N[0]&flagQuiet == 0 {
			t.Fatalf("%s: %+v, %v", c.name, request, err)
		}
		for _, r := range c.reports {
			r.Seq = request.Seq
			if _, err := theirs.Write(r.Append(nil)); err != nil {
				t.Fatal(err)
			}
		}
		if end := <-x.Done; end.Code != c.want.Code || !errors.Is(end.Err, c.want.Err) {
			t.Errorf("%s: %+v, want %+v", c.name, end, c.want)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) > 0 || len(m.execs) > 0 {
		t.Errorf("%d answers and %d ends are waited for", len(m.waiting), len(m.execs))
	}
}
