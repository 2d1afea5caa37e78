package cgroups

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// readFile reads a file of the kernel. os.ReadFile would add each to the poller and make its path absolute twice; a
// scrape of all containers reads thousands.
func readFile(path string) (string, error) {
	fd, err := ignoringInterrupts(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return "", fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	buffer := readBuffers.Get().(*[8192]byte)
	defer readBuffers.Put(buffer)
	text, used := "", 0
	for {
		n, err := ignoringInterrupts(func() (int, error) { return unix.Read(fd, buffer[used:]) })
		if err != nil {
			return "", fmt.Errorf("read %s: %w", path, err)
		}
		if n == 0 {
			return text + string(buffer[:used]), nil
		}
		if used += n; used == len(buffer) {
			text, used = text+string(buffer[:]), 0
		}
	}
}

// readBuffers are what readFile reads into.
var readBuffers = sync.Pool{New: func() any { return new([8192]byte) }}

func ignoringInterrupts(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
