package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal runs a command on a pseudo-terminal, as a person would.
type terminal struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd

	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func openTerminal(t *testing.T, cmd *exec.Cmd, rows, cols uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, master: master, cmd: cmd, more: make(chan struct{}, 1)}
	term.resize(rows, cols)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	go term.read()
	return term
}

func (x *terminal) read() {
	buf := make([]byte, 4096)
	for {
		n, err := x.master.Read(buf)
		x.mu.Lock()
		x.text.Write(buf[:n])
		x.mu.Unlock()
		select {
		case x.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (x *terminal) resize(rows, cols uint16) {
	if err := unix.IoctlSetWinsize(int(x.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: rows, Col: cols}); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) write(s string) { fmt.Fprint(x.master, s) }

// expect waits for text on the screen and forgets what stood before it.
func (x *terminal) expect(want string) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		x.mu.Lock()
		s := x.text.String()
		if i := strings.Index(s, want); i >= 0 {
			x.text.Next(i + len(want))
			x.mu.Unlock()
			return
		}
		x.mu.Unlock()
		select {
		case <-ctx.Done():
			x.t.Fatalf("the terminal never showed %q but %q", want, s)
		case <-x.more:
		case <-time.After(time.Second):
		}
	}
}

func (x *terminal) end() error {
	err := x.cmd.Wait()
	x.master.Close()
	return err
}
