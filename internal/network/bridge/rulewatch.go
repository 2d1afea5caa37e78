package bridge

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rulesWatch reports changes of the host's rules, for example when Docker starts or a firewall is
// reloaded. One goroutine reads the kernel's notifications until close; it sleeps while there is no
// change.
type rulesWatch struct {
	socket *os.File
	done   chan struct{}
}

// settleRules is the time without changes before rules are checked: a firewall is loaded in many
// steps.
const settleRules = 200 * time.Millisecond

// watchRules calls changed after each change of chains or rules, including its own. The socket is
// in the calling thread's network namespace.
func watchRules(changed func()) (*rulesWatch, error) {
	socket, err := subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	w := &rulesWatch{socket: socket, done: make(chan struct{})}
	go w.run(changed)
	return w, nil
}

func (w *rulesWatch) close() {
	_ = w.socket.Close()
	<-w.done
}

func (w *rulesWatch) run(changed func()) {
	defer close(w.done)
	buf := make([]byte, 64<<10)
	pending := false
	for {
		n, err := w.socket.Read(buf)
		switch {
		case err == nil:
			if !pending && !changesRules(buf[:n]) {
				continue
			}
		case errors.Is(err, unix.ENOBUFS): // some were lost
		case errors.Is(err, os.ErrDeadlineExceeded):
			pending = false
			_ = w.socket.SetReadDeadline(time.Time{})
			changed()
			continue
		default:
			return
		}
		pending = true
		_ = w.socket.SetReadDeadline(time.Now().Add(settleRules))
	}
}

// changesRules reports whether a datagram is about chains or rules. Set elements, which each host
// port adds, are ignored.
func changesRules(b []byte) bool {
	msgs, err := syscall.ParseNetlinkMessage(b)
	return err != nil || slices.ContainsFunc(msgs, func(m syscall.NetlinkMessage) bool {
		if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES {
			return false
		}
		switch m.Header.Type & 0xff {
		case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
			return true
		}
		return false
	})
}
