package monitor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
	"carob/internal/base/testwait"
	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/wire"
)

// connection is carob's end of a connection to a monitor, and that of the monitor.
func connection(t *testing.T) (*net.UnixConn, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	t.Cleanup(func() { theirs.Close() })
	conn, err := openfile.UnixConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, theirs
}

// goroutines counts those that are in a function.
func goroutines(function string) int {
	b := make([]byte, 1<<20)
	return strings.Count(string(b[:runtime.Stack(b, true)]), function+"(")
}

func exists(pid int) bool { return unix.Kill(pid, 0) == nil } // also a zombie

// TestMonitorCostsOneGoroutine: nothing but the receiver waits for a running monitor, and none that has ended stays a
// zombie, whether it was closed, killed, or received Quit.
func TestMonitorCostsOneGoroutine(t *testing.T) {
	bin := filepath.Join("..", "csrc", "bin", runtime.GOARCH)
	text, err1 := os.ReadFile(filepath.Join(bin, "monitor"))
	programs, err2 := Load(text, text)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	before := runtime.NumGoroutine()
	var all []*Monitor
	for range 9 {
		m, err := programs.StartMonitor(cgroups.Entry{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	if n := runtime.NumGoroutine() - before; n > len(all) {
		t.Errorf("%d monitors cost %d goroutines", len(all), n)
	}
	if n := goroutines("os.(*Process).Wait"); n > 0 {
		t.Errorf("%d goroutines block their threads until a process ends", n)
	}
	for i, m := range all {
		switch i % 3 {
		case 0:
			m.Close()
		case 1:
			m.Quit()
		case 2:
			if err := unix.Kill(m.PID(), unix.SIGKILL); err != nil {
				t.Error(err)
			}
		}
		testwait.For(t, "the monitor is reaped", func() bool { return !exists(m.PID()) })
		<-m.Gone()
	}
}

// TestReapsAfterBrokenLine: a monitor that lives on without its connection takes no thread, and is no zombie later.
func TestReapsAfterBrokenLine(t *testing.T) {
	conn, theirs := connection(t)
	cmd := exec.Command("cat")
	end, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	m := newMonitor(conn, cmd)
	theirs.Close()
	<-m.Gone()
	testwait.For(t, "its end is waited for", func() bool { return goroutines("monitor.awaitEnd") == 1 })
	if !exists(m.PID()) || goroutines("os.(*Process).Wait") > 0 {
		t.Error("a thread waits for it, or it has ended")
	}
	end.Close()
	testwait.For(t, "it is reaped", func() bool { return !exists(m.PID()) })
}

// TestIdleMonitorsHaveNoBuffer: connections that receive nothing hold no receive buffer.
func TestIdleMonitorsHaveNoBuffer(t *testing.T) {
	heap := func() uint64 {
		var s runtime.MemStats
		for range 3 { // what a pool keeps goes with the second
			runtime.GC()
		}
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	const count, most = 100, 4 << 10
	before := heap()
	var all []*Monitor
	var ends []*os.File
	for range count {
		conn, theirs := connection(t)
		all, ends = append(all, newMonitor(conn, nil)), append(ends, theirs)
	}
	for i, f := range ends { // each has received one message
		answer := make(chan wire.Message, 1)
		all[i].mu.Lock()
		all[i].waiting[1] = answer
		all[i].mu.Unlock()
		if _, err := f.Write((&wire.Message{Code: replyDone, Seq: 1}).Append(nil)); err != nil {
			t.Fatal(err)
		}
		<-answer
	}
	testwait.For(t, "all wait again", func() bool { return goroutines("monitor.receiveMessage") == count })
	if now := heap(); now > before && now-before > count*most {
		t.Errorf("a silent connection has %d bytes, want at most %d", (now-before)/count, most)
	}
	runtime.KeepAlive(all)
}

// TestReceivesEachMessageWhole: messages of all lengths, also the longest, arrive one by one, and the connection ends
// with what is no message.
func TestReceivesEachMessageWhole(t *testing.T) {
	conn, theirs := connection(t)
	in, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	longest := maxMessage - len((&wire.Message{}).Append(nil))
	var texts []string
	for i, n := range []int{0, 1, 4000, longest, 3} {
		texts = append(texts, strings.Repeat(fmt.Sprint(i), n))
	}
	for _, s := range texts {
		if _, err := theirs.Write((&wire.Message{Code: replyDone, S: [4]string{s}}).Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	var got []wire.Message
	for range texts {
		r, err := receiveMessage(in)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	for i, r := range got { // after the buffer was used again
		if r.S[0] != texts[i] {
			t.Errorf("message %d has %d bytes, want %d", i, len(r.S[0]), len(texts[i]))
		}
	}
	if _, err := theirs.Write([]byte("short")); err != nil {
		t.Fatal(err)
	}
	if _, err := receiveMessage(in); err == nil {
		t.Error("five bytes are taken for a message")
	}
	theirs.Close()
	if _, err := receiveMessage(in); err == nil {
		t.Error("no error at the end")
	}
}
