// Package stdio connects the standard streams of a process with its caller: it makes both ends of them, copies between
// the process and the caller, and passes the sizes of a terminal on. The runtime uses one Streams for each exec. It
// neither starts a process nor waits for its end.
package stdio

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/output"
)

// drainTime is how long Drain continues to read while a process that was left behind still has the streams open: a hook
// or a probe does not wait for a daemon.
const drainTime = time.Second

// clientCheck is how often Drain checks whether the client of the remaining output is still connected.
const clientCheck = time.Second

// Caller is who runs a process. Nil streams are not connected.
type Caller struct {
	In       io.Reader
	Out, Err io.Writer // with a terminal, all output goes to Out
	TTY      bool
	Resize   <-chan remotecommand.TerminalSize // nil: the size does not change
	Client   bool                              // it reads as long as there is output

	Collected *output.Collector // takes the output instead of Out and Err; nil for none
}

// gone reports whether the caller has disconnected: a write of zero bytes fails then.
func (c *Caller) gone() bool {
	if c.Err == nil && c.Out == io.Discard {
		return true
	}
	for _, w := range []io.Writer{c.Out, c.Err} {
		if w != nil {
			if _, err := w.Write(nil); err != nil {
				return true
			}
		}
	}
	return false
}

// Streams are both ends of a process's stdin, stdout, and stderr, or of the socket that passes its terminal.
type Streams struct {
	Theirs [3]*os.File // for the process, until Copy

	ours   [3]*os.File
	caller Caller
	copied <-chan struct{} // closed when all output has been copied
	once   sync.Once
	closed chan struct{}
}

// Open makes the streams of a process.
func Open(c Caller) (s *Streams, err error) {
	s = &Streams{caller: c, closed: make(chan struct{})}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if c.Collected != nil {
		s.Theirs[1], s.Theirs[2] = c.Collected.Theirs[0], c.Collected.Theirs[1]
		s.Theirs[0], err = null()
		return s, err
	}
	if c.TTY {
		for i := range 2 {
			if s.Theirs[i], err = null(); err != nil {
				return s, err
			}
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return s, fmt.Errorf("making the console's socket: %w", err)
		}
		s.ours[2], s.Theirs[2] = os.NewFile(uintptr(fds[0]), "console"), os.NewFile(uintptr(fds[1]), "console")
		return s, nil
	}
	for i, connected := range []bool{c.In != nil, c.Out != nil, c.Err != nil} {
		switch {
		case !connected:
			s.Theirs[i], err = null()
		case i == 0:
			s.Theirs[i], s.ours[i], err = os.Pipe()
		default:
			s.ours[i], s.Theirs[i], err = os.Pipe()
		}
		if err != nil {
			return s, fmt.Errorf("making the process's streams: %w", err)
		}
		s.Theirs[i].Fd() // programs expect blocking streams
	}
	return s, nil
}

// null opens /dev/null for a process. os.OpenFile would offer it to the poller.
func null() (*os.File, error) {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/null: %w", err)
	}
	return os.NewFile(uintptr(fd), "/dev/null"), nil
}

// Copy starts copying. The process has been started: its ends are closed.
func (s *Streams) Copy() error {
	for i := range s.Theirs {
		s.Theirs[i].Close()
	}
	switch {
	case s.caller.Collected != nil:
		s.copied = s.caller.Collected.Done()
	case s.caller.TTY:
		return s.copyTerminal()
	default:
		s.copyPipes()
	}
	return nil
}

func (s *Streams) copyTerminal() error {
	master, err := monitor.ReceiveTerminal(s.ours[2])
	if err != nil {
		return err
	}
	s.ours[0] = master
	go s.sizes(func(z remotecommand.TerminalSize) { monitor.ResizeTerminal(master, z.Height, z.Width) })
	if s.caller.In != nil {
		go func() { _, _ = io.Copy(master, s.caller.In) }() // ends with the process or with the client
	}
	done := make(chan struct{})
	s.copied = done
	go func() {
		defer close(done)
		_, _ = io.Copy(s.caller.Out, master) // ends with EIO when the last process closes it
		master.Close()                       // or with a client that stops reading: the processes get SIGHUP
	}()
	return nil
}

func (s *Streams) copyPipes() {
	go s.sizes(func(remotecommand.TerminalSize) {})
	if s.caller.In != nil {
		in := s.ours[0]
		go func() {
			_, _ = io.Copy(in, s.caller.In) // a process that stops reading is not a failure
			in.Close()                      // the process gets end of file
		}()
	}
	var wg sync.WaitGroup
	for i, w := range map[int]io.Writer{1: s.caller.Out, 2: s.caller.Err} {
		if s.ours[i] == nil {
			continue
		}
		wg.Go(func() {
			_, _ = io.Copy(w, s.ours[i]) // a client that stops reading is not a failure
			s.ours[i].Close()            // but a process that still writes gets an error
		})
	}
	done := make(chan struct{})
	s.copied = done
	go func() {
		wg.Wait()
		close(done)
	}()
}

// sizes takes the sizes of the caller's terminal until there are no more, or the streams are closed.
func (s *Streams) sizes(resize func(remotecommand.TerminalSize)) {
	if s.caller.Resize == nil {
		return
	}
	for {
		select {
		case z, ok := <-s.caller.Resize:
			if !ok {
				return
			}
			resize(z)
		case <-s.closed:
			return
		}
	}
}

// Drain continues to read after the process has ended, as containerd and CRI-O do: until all processes that it left
// behind have closed its streams, or the client has disconnected.
func (s *Streams) Drain(ctx context.Context) {
	wait := drainTime
	if s.caller.Client {
		wait = clientCheck
	}
	select {
	case <-s.copied: // usually; without a timer
		return
	default:
	}
	for {
		select {
		case <-s.copied:
			return
		case <-ctx.Done():
			return
		case <-time.After(wait):
			if !s.caller.Client || s.caller.gone() {
				return
			}
		}
	}
}

// Close closes what is open of both ends.
func (s *Streams) Close() {
	s.once.Do(func() {
		close(s.closed)
		for i := range s.Theirs {
			for _, f := range []*os.File{s.Theirs[i], s.ours[i]} {
				if f != nil {
					f.Close()
				}
			}
		}
	})
}
