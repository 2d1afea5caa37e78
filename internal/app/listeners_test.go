package app

import (
	"errors"
	"io"
	"net"
	"testing"
)

// Connections to each listener are accepted, also to one that comes later; Close ends all.
func TestListeners(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first, second := listen(), listen()
	l := newListeners(first)
	if l.Addr() != first.Addr() {
		t.Errorf("address %v", l.Addr())
	}
	served := make(chan error)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				served <- err
				return
			}
			_, _ = c.Write([]byte("x"))
			_ = c.Close()
		}
	}()
	dial := func(to net.Listener) error {
		c, err := net.Dial("tcp", to.Addr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.ReadFull(c, make([]byte, 1))
		return err
	}
	if err := dial(first); err != nil {
		t.Error(err)
	}
	l.add(second)
	for _, to := range []net.Listener{second, first, second} {
		if err := dial(to); err != nil {
			t.Error(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	for _, to := range []net.Listener{first, second} {
		if err := dial(to); err == nil {
			t.Error("it still listens")
		}
	}
}
