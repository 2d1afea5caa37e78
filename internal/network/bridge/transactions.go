package bridge

import (
	"fmt"
	"sync"

	"github.com/google/nftables"

	"carob/internal/network/nft"
)

// transactions changes nftables through one netlink socket, which stays open. When a process closes such a socket, the
// kernel first frees what earlier transactions removed, with the lock of all nftables: that takes an RCU grace period
// of several milliseconds, for which the end of each pod waited.
type transactions struct {
	mu   sync.Mutex
	conn *nftables.Conn // nil: none is open
}

// run sends what fill adds as one transaction; what describes it in errors.
func (t *transactions) run(what string, fill func(*nftables.Conn) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil {
		conn, err := nftables.New(nftables.AsLasting(), nft.Room())
		if err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		t.conn = conn
	}
	err := fill(t.conn)
	if err == nil {
		if err = t.conn.Flush(); err != nil {
			err = fmt.Errorf("%s: %w", what, err)
		}
	}
	if err != nil { // it may have messages that were not sent, and answers that were not read
		t.closeLocked()
	}
	return err
}

func (t *transactions) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeLocked()
}

func (t *transactions) closeLocked() {
	if t.conn != nil {
		_ = t.conn.CloseLasting()
		t.conn = nil
	}
}

// closeSockets closes the sockets that stay open between pods.
func (n *Network) closeSockets() {
	n.rules.elements.close()
	n.flows.close()
}
