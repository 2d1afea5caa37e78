package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"sync"
)

// proxy joins each connection to a socket with one to a TCP port, on whose other side the driver is: upstream's mock
// driver, in the process of the test. It makes its connections in advance and replaces those that ended.
func proxy(ctx context.Context, endpoint, tcp string) error {
	own, err := listenUnix(path(endpoint))
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	other, err := net.Listen("tcp", strings.TrimPrefix(tcp, "tcp://"))
	if err != nil {
		return fmt.Errorf("listen for the driver: %w", err)
	}
	defer func() { _ = other.Close() }()
	stop := context.AfterFunc(ctx, func() {
		_ = own.Close()
		_ = other.Close()
	})
	defer stop()
	for {
		a, err := own.Accept()
		if err != nil {
			return acceptError(ctx, err)
		}
		b, err := other.Accept()
		if err != nil {
			_ = a.Close()
			return acceptError(ctx, err)
		}
		log.Print("a connection")
		go join(a, b)
	}
}

// acceptError is err, unless the proxy was stopped.
func acceptError(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return fmt.Errorf("accept: %w", err)
	}
	return nil
}

// join copies both ways, and closes both connections when one of them ends.
func join(a, b net.Conn) {
	var once sync.Once
	closeBoth := func() {
		_ = a.Close()
		_ = b.Close()
	}
	for _, c := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, _ = io.Copy(c[0], c[1])
			once.Do(closeBoth)
		}()
	}
}
