package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	core "carob/internal/core/netplan/services"
)

// reopener marks the TCP connections to endpoints that have just left the table. Without the mark, a connection that
// its endpoint ends by a reset (its program ended with unread bytes) stays in connection tracking for ten seconds, and
// a client that takes the same source port again is sent to the old endpoint, which refuses it. With the mark
// (IP_CT_TCP_FLAG_CLOSE_INIT, which the kernel sets itself when a connection ends by FIN) the kernel deletes the ended
// entry when the client opens the connection again, and applies the rules. The mark changes nothing while a connection
// is open. A pod counts as routed until its connections are marked: it ends none of them before (N8.13).
type reopener struct {
	wake   chan struct{}
	marked func() // after each pass
	tracking

	mu      sync.Mutex
	todo    leavers // of the next pass
	current leavers // of the pass that runs
}

// leavers are endpoints that have left the table, and the pods that left with them.
type leavers struct {
	endpoints map[netip.AddrPort]bool
	pods      map[types.UID]bool
}

func newReopener(marked func()) *reopener {
	return &reopener{wake: make(chan struct{}, 1), marked: marked}
}

// left records what has left the table with changes.
func (r *reopener) left(changes []core.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		gone := c.GoneEndpoints()
		if len(gone) == 0 {
			continue
		}
		if r.todo.endpoints == nil {
			r.todo = leavers{map[netip.AddrPort]bool{}, map[types.UID]bool{}}
		}
		maps.Copy(r.todo.endpoints, gone)
		for _, pod := range c.Left {
			r.todo.pods[pod] = true
		}
		poke(r.wake)
	}
}

// pending reports whether the connections of a pod that left are not marked yet.
func (r *reopener) pending(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.todo.pods[pod] || r.current.pods[pod]
}

// run marks connections until ctx is done. A pass that fails is not repeated: the connections end by timeouts.
func (r *reopener) run(ctx context.Context) {
	defer r.close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		r.mu.Lock()
		r.current, r.todo = r.todo, leavers{}
		r.mu.Unlock()
		if err := r.mark(r.current.endpoints); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot mark some connections to endpoints that have left", "err", err)
		}
		r.mu.Lock()
		r.current = leavers{}
		r.mu.Unlock()
		r.marked()
	}
}

// fewEndpoints are listed one by one, which lets the kernel select the connections; for more of them all connections of
// TCP are listed once.
const fewEndpoints = 8

// passTimeout bounds a pass: for longer, no pod waits.
const passTimeout = 5 * time.Second

// mark marks the TCP connections to endpoints.
func (r *reopener) mark(endpoints map[netip.AddrPort]bool) error {
	if len(endpoints) == 0 {
		return nil
	}
	conn, err := r.dial(passTimeout)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var families [2]int // IPv4, IPv6
	for e := range endpoints {
		families[family(e.Addr())]++
	}
	var errs []error
	if len(endpoints) > fewEndpoints {
		for i, n := range families {
			if n > 0 {
				errs = append(errs, markListed(conn, i, netip.AddrPort{}, endpoints))
			}
		}
		return errors.Join(errs...)
	}
	for e := range endpoints {
		errs = append(errs, markListed(conn, family(e.Addr()), e, endpoints))
	}
	return errors.Join(errs...)
}

// family is the index of an address family: 0 for IPv4, 1 for IPv6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// markListed marks the connections to endpoints of one family. The kernel lists only those to `only`, if that is valid;
// kernels before 5.8 list all.
func markListed(conn *netlink.Conn, family int, only netip.AddrPort, endpoints map[netip.AddrPort]bool) error {
	request, err := listAll(family, unix.IPPROTO_TCP)
	if only.IsValid() {
		request, err = listTo(family, only)
	}
	if err != nil {
		return err
	}
	list, err := conn.Execute(request)
	if err != nil {
		return fmt.Errorf("list tracked connections: %w", err)
	}
	var errs []error
	for _, m := range list {
		flow, err := parseFlow(m.Data)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if flow.marked || flow.reply.protocol != unix.IPPROTO_TCP || !endpoints[flow.reply.from] {
			continue
		}
		request, err := flow.closing(family)
		if err == nil {
			_, err = conn.Execute(request)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: it has ended meanwhile
			errs = append(errs, fmt.Errorf("mark a tracked connection: %w", err))
		}
	}
	return errors.Join(errs...)
}
