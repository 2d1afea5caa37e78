package app

import (
	"context"
	"errors"
	"net"
	"sync"
)

// listeners is a listener that accepts connections of several. Its address is that of the first one.
type listeners struct {
	net.Listener
	conns  chan accepted
	closed chan struct{}
	once   sync.Once

	mu  sync.Mutex
	all []net.Listener
}

type accepted struct {
	conn net.Conn
	err  error
}

func newListeners(first net.Listener) *listeners {
	l := &listeners{Listener: first, conns: make(chan accepted), closed: make(chan struct{})}
	l.add(first)
	return l
}

// add accepts the connections of another listener, too, which is closed with the others.
func (l *listeners) add(more net.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, more)
	go func() {
		for {
			conn, err := more.Accept()
			select {
			case l.conns <- accepted{conn, err}:
			case <-l.closed:
				if err == nil {
					_ = conn.Close()
				}
				return
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
}

// Accept returns the next connection of any listener.
func (l *listeners) Accept() (net.Conn, error) {
	select {
	case a := <-l.conns:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close closes all listeners.
func (l *listeners) Close() error {
	l.once.Do(func() { close(l.closed) })
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, one := range l.all {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// listenForPods has the API server listen where pods reach it, if it listens on a loopback address:
// on the bridge's address, which, by the rules of the pod network, only pods and this host can reach.
func (c *carob) listenForPods(ctx context.Context) error {
	if !c.in.Gateway.IsValid() {
		return nil
	}
	var config net.ListenConfig
	more, err := config.Listen(ctx, "tcp", c.in.Gateway.String())
	if err != nil {
		return err
	}
	c.api.add(more)
	return nil
}
