package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"carob/test/bench/processor"
)

// connectionsPort is the variable that makes this program call connect instead of measuring.
const connectionsPort = "BENCH_NODE_CONNECT"

// connections is what the system calls of HTTP probes cost in percent of a core: connect runs in a process of its own.
func connections(ctx context.Context, port int, d time.Duration) (percent float64, err error) {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", connectionsPort, port))
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	if err := pause(ctx, time.Second); err != nil { // until it has started
		return 0, err
	}
	began, used := time.Now(), processor.Total(cmd.Process.Pid)
	if err := pause(ctx, d); err != nil {
		return 0, err
	}
	if used == 0 {
		return 0, errors.New("the program that makes connections did not start")
	}
	return (processor.Total(cmd.Process.Pid) - used).Seconds() / time.Since(began).Seconds() * 100, nil
}

// connect makes as many connections a second as there are probes, one after the other in one thread with as few system
// calls as possible, until one fails.
func connect(port int) error {
	request := []byte("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: kube-probe/1.37\r\nAccept: */*\r\n" +
		"Connection: close\r\n\r\n")
	answer := make([]byte, 4096)
	for next := time.Now(); ; next = next.Add(time.Second / rate) {
		time.Sleep(time.Until(next))
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err == nil {
			_, err = unix.Write(fd, request)
		}
		if err == nil {
			_, err = unix.Read(fd, answer)
		}
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return err
		}
	}
}
