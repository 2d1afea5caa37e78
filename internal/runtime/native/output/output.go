// Package output collects what a command writes to its standard output and error. Most commands of probes print a line
// or nothing and end at once: as long as the pipes have room, nothing waits for their output, and it is read once,
// after the command's end. The native runtime drives it. It handles pipes, not commands.
package output

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Most is how many bytes of each stream are kept, as in CRI.
const Most = 16 << 20

// mostAtOnce limits what Finish reads from a pipe in bytes: the capacity of a pipe, unless a process changed it.
const mostAtOnce = 64 << 10

// Collector has the ends of two pipes and what was read from them. Its methods are for one goroutine.
type Collector struct {
	// Theirs are the ends for the command. They are blocking; whoever starts the command closes them then.
	Theirs [2]*os.File

	ours  [2]int      // not blocking; -1 after the end of the stream
	read  [2]*os.File // the same as long as they are followed
	texts [2]limited
	open  atomic.Int32 // streams that have not ended
	done  chan struct{}
}

// New makes the pipes.
func New() (*Collector, error) {
	c := &Collector{ours: [2]int{-1, -1}, done: make(chan struct{})}
	for i := range c.ours {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			c.Close()
			return nil, fmt.Errorf("making a pipe for a command's output: %w", err)
		}
		c.ours[i], c.Theirs[i] = fds[0], os.NewFile(uintptr(fds[1]), "output")
		c.open.Add(1)
		if err := unix.SetNonblock(fds[0], true); err != nil {
			c.Close()
			return nil, fmt.Errorf("making a pipe for a command's output: %w", err)
		}
	}
	return c, nil
}

// Done is closed when both streams have ended: no process has their other ends open. That is noticed by Finish and
// after Follow.
func (c *Collector) Done() <-chan struct{} { return c.done }

// Follow begins to read the streams while the command runs. Without it, a command that writes more than a pipe takes
// waits.
func (c *Collector) Follow() {
	for i, fd := range c.ours {
		if fd < 0 || c.read[i] != nil {
			continue
		}
		f := os.NewFile(uintptr(fd), "output")
		c.ours[i], c.read[i] = -1, f
		go func() {
			_, _ = c.texts[i].ReadFrom(f) // ends with the stream, or with Close
			f.Close()                     // a process that still writes gets an error
			c.ended()
		}()
	}
}

// Finish reads what the command has written until its end. It follows streams that processes which the command left
// behind have open.
func (c *Collector) Finish() {
	for i, fd := range c.ours {
		if fd >= 0 && c.texts[i].readNow(fd) {
			unix.Close(fd) //nolint:errcheck,gosec // nothing was written
			c.ours[i] = -1
			c.ended()
		}
	}
	c.Follow()
}

// ended counts the end of a stream.
func (c *Collector) ended() {
	if c.open.Add(-1) == 0 {
		close(c.done)
	}
}

// Text is what was written to standard output (0) or error (1) so far. Later output does not change it.
func (c *Collector) Text(stream int) []byte { return c.texts[stream].take() }

// Close closes all ends. Processes that still write get an error.
func (c *Collector) Close() {
	for i, fd := range c.ours {
		if fd >= 0 {
			unix.Close(fd) //nolint:errcheck,gosec // nothing was written
			c.ours[i] = -1
		}
		for _, f := range []*os.File{c.read[i], c.Theirs[i]} {
			if f != nil {
				f.Close()
			}
		}
	}
}

// limited keeps the first Most bytes until take, and discards the rest. Processes that the command left behind may
// write at any time, also while take is called.
type limited struct {
	mu    sync.Mutex
	b     bytes.Buffer
	taken bool
}

func (l *limited) write(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := Most - l.b.Len(); room > 0 && !l.taken {
		l.b.Write(p[:min(room, len(p))])
	}
}

// take returns what was written so far. Later output does not change it.
func (l *limited) take() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = true
	return l.b.Bytes()
}

// buffers are what streams are read with: io.Copy would allocate 32 KiB for each stream of each command.
var buffers = sync.Pool{New: func() any { return new([4096]byte) }}

// ReadFrom reads to the end.
func (l *limited) ReadFrom(r io.Reader) (n int64, err error) {
	buffer := buffers.Get().(*[4096]byte)
	defer buffers.Put(buffer)
	for {
		m, err := r.Read(buffer[:])
		n += int64(m)
		l.write(buffer[:m])
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// readNow reads what is in a pipe. ended: no process has its other end open, or it cannot be read.
func (l *limited) readNow(fd int) (ended bool) {
	buffer := buffers.Get().(*[4096]byte)
	defer buffers.Put(buffer)
	for left := mostAtOnce; left > 0; {
		n, err := unix.Read(fd, buffer[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil || n == 0:
			return true
		default:
			l.write(buffer[:n])
			left -= n
		}
	}
	return false // a process writes on
}
