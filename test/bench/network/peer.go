package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// What this program does inside of pods, where it is mounted: pods with the demo's image need no other.
var peerCommands = map[string]func(args []string) error{"serve": serve, "connect": connect, "stream": stream}

const (
	namePort = "8080" // answers with the name of the pod
	sinkPort = "8081" // reads what comes
	block    = 128 << 10
)

// serve answers until SIGTERM, and then ends at once.
func serve(args []string) error {
	if len(args) != 1 {
		return errors.New("serve NAME")
	}
	names, err := net.Listen("tcp", ":"+namePort)
	if err != nil {
		return err
	}
	sink, err := net.Listen("tcp", ":"+sinkPort)
	if err != nil {
		return err
	}
	go accept(names, func(c net.Conn) { _, _ = io.WriteString(c, args[0]+"\n") })
	go accept(sink, drain)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	<-term
	return nil
}

func accept(l net.Listener, handle func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			handle(c)
			_, _ = io.Copy(io.Discard, c) // the client closes: its side has no port in TIME_WAIT
		}()
	}
}

func drain(c net.Conn) {
	buf := make([]byte, block)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
}

// dial opens a connection that is reset at its end, so that any number can follow each other.
func dial(to string, timeout time.Duration) (*net.TCPConn, error) {
	c, err := net.DialTimeout("tcp", to, timeout)
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("%T is not a TCP connection", c)
	}
	return tcp, tcp.SetLinger(0)
}

// connect opens connections to two addresses by turns and prints the median of each, in microseconds.
func connect(args []string) error {
	if len(args) != 2 {
		return errors.New("connect POD SERVICE")
	}
	const rounds = 3000
	took := map[string][]time.Duration{}
	for i := range rounds {
		for j := range args {
			to := args[(i+j)%2]
			start := time.Now()
			c, err := dial(to, 5*time.Second)
			if err != nil {
				return err
			}
			took[to] = append(took[to], time.Since(start))
			_ = c.Close()
		}
	}
	return json.NewEncoder(os.Stdout).Encode([]float64{us(quantile(took[args[0]], 0.5)),
		us(quantile(took[args[1]], 0.5))})
}

// stream sends to an address for some time and prints Gbit/s; "loopback" is a reader in the same process.
func stream(args []string) error {
	if len(args) != 2 {
		return errors.New("stream ADDRESS DURATION")
	}
	d, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	to := args[0]
	if to == "loopback" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go accept(l, drain)
		to = l.Addr().String()
	}
	c, err := dial(to, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	buf, sent, start := make([]byte, block), 0, time.Now()
	for time.Since(start) < d {
		n, err := c.Write(buf)
		if err != nil {
			return err
		}
		sent += n
	}
	return json.NewEncoder(os.Stdout).Encode([]float64{float64(sent) * 8 / time.Since(start).Seconds() / 1e9})
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func ms(d time.Duration) float64 { return us(d) / 1e3 }

// quantile of a list in any order, by its nearest rank: at least this part of the list is not above it.
func quantile(list []time.Duration, q float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}
