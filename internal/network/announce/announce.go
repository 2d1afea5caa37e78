// Package announce makes addresses reachable at this node for its neighbours on Ethernet links: it answers ARP and NDP
// requests for them, and announces new addresses, as MetalLB's layer-2 mode does. internal/network/services drives it
// with the addresses of load balancers. The addresses are not assigned to an interface of the node: the rules of
// Services handle their packets, and other ports stay closed.
//
// Standards: RFC 826 and 5227 (ARP), RFC 4861 (neighbour discovery).
package announce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Neighbours keep old entries for a while and may miss one announcement, so there are several.
const (
	announcements = 5
	pause         = 1100 * time.Millisecond
)

// Announcer announces addresses. Its methods must be called by one goroutine, in the network
// namespace of the links. The zero value, and one without addresses, has no socket and no goroutine.
type Announcer struct {
	links map[linkID]*link
}

// linkID identifies a link: a replaced link has another one.
type linkID struct {
	index int
	hw    string
}

// speaker is the protocol of an address family on a link.
type speaker interface {
	// announce announces to all neighbours that an address is at this node.
	announce(netip.Addr) error
	// join subscribes to requests for an address; leave is the opposite.
	join(netip.Addr) error
	leave(netip.Addr)
	// run answers requests until Close.
	run(has func(netip.Addr) bool)
	Close() error
}

// link is a link with the addresses that are announced on it.
type link struct {
	net.Interface
	has      atomic.Pointer[[]netip.Addr]
	speakers map[bool]speaker // by whether they are IPv6's
	done     chan struct{}
	wait     sync.WaitGroup
}

// Update sets the addresses that are announced. names are the links; without any, those that
// have an address of the node. An error concerns some of the links or addresses: the others are
// announced.
func (a *Announcer) Update(addresses []netip.Addr, names []string, node []netip.Addr) error {
	var errs []error
	var wanted []net.Interface
	if len(addresses) > 0 {
		var err error
		if wanted, err = find(names, node); err != nil {
			errs = append(errs, err)
		}
	}
	if a.links == nil {
		a.links = map[linkID]*link{}
	}
	id := func(i net.Interface) linkID { return linkID{i.Index, i.HardwareAddr.String()} }
	for have, l := range a.links {
		if !slices.ContainsFunc(wanted, func(i net.Interface) bool { return id(i) == have }) {
			l.close()
			delete(a.links, have)
		}
	}
	for _, i := range wanted {
		l := a.links[id(i)]
		if l == nil {
			l = &link{Interface: i, speakers: map[bool]speaker{}, done: make(chan struct{})}
			l.has.Store(&[]netip.Addr{})
			a.links[id(i)] = l
		}
		errs = append(errs, l.update(addresses))
	}
	return errors.Join(errs...)
}

// Close stops answering requests.
func (a *Announcer) Close() {
	for id, l := range a.links {
		l.close()
		delete(a.links, id)
	}
}

// find returns the links with these names, or those with an address of the node.
func find(names []string, node []netip.Addr) (out []net.Interface, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagBroadcast == 0 || len(i.HardwareAddr) != 6 {
			continue
		}
		if len(names) > 0 && slices.Contains(names, i.Name) || len(names) == 0 && hasAny(i, node) {
			out = append(out, i)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(out, func(i net.Interface) bool { return i.Name == name }) {
			err = errors.Join(err, fmt.Errorf("%q is not an Ethernet link that is up", name))
		}
	}
	if len(names) == 0 && len(out) == 0 {
		err = errors.New("no Ethernet link has an address of the node")
	}
	return out, err
}

func hasAny(i net.Interface, node []netip.Addr) bool {
	list, err := i.Addrs()
	return err == nil && slices.ContainsFunc(list, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && slices.Contains(node, p.Addr())
	})
}

func (l *link) holds(a netip.Addr) bool { return slices.Contains(*l.has.Load(), a) }

// update takes the addresses of this link.
func (l *link) update(addresses []netip.Addr) error {
	var errs []error
	before := *l.has.Load()
	now := make([]netip.Addr, 0, len(addresses))
	var fresh []netip.Addr
	for _, a := range addresses {
		s, err := l.speaker(a.Is6())
		if err == nil && !slices.Contains(before, a) {
			if err = s.join(a); err == nil {
				fresh = append(fresh, a)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("announce %s on link %s: %w", a, l.Name, err))
			continue
		}
		now = append(now, a)
	}
	l.has.Store(&now)
	for _, a := range before {
		if s := l.speakers[a.Is6()]; s != nil && !slices.Contains(now, a) {
			s.leave(a)
		}
	}
	if len(fresh) > 0 {
		errs = append(errs, l.announce(fresh))
		speakers := [2]speaker{l.speakers[false], l.speakers[true]}
		l.wait.Go(func() { l.repeat(fresh, speakers) })
	}
	return errors.Join(errs...)
}

// speaker opens the protocol of a family when it is first needed.
func (l *link) speaker(v6 bool) (s speaker, err error) {
	if s := l.speakers[v6]; s != nil {
		return s, nil
	}
	if v6 {
		s, err = openNDP(l.Interface)
	} else {
		s, err = openARP(l.Interface)
	}
	if err != nil {
		return nil, err
	}
	l.speakers[v6] = s
	l.wait.Go(func() { s.run(l.holds) })
	return s, nil
}

func (l *link) announce(list []netip.Addr) error {
	var errs []error
	for _, a := range list {
		if l.holds(a) { // the link may have been removed
			if err := l.speakers[a.Is6()].announce(a); err != nil {
				errs = append(errs, fmt.Errorf("announce %s on link %s: %w", a, l.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// repeat announces addresses several more times; errors are ignored, as the next update reports them.
func (l *link) repeat(list []netip.Addr, speakers [2]speaker) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for range announcements - 1 {
		select {
		case <-l.done:
			return
		case <-tick.C:
		}
		for _, a := range list {
			s := speakers[0]
			if a.Is6() {
				s = speakers[1]
			}
			if l.holds(a) {
				_ = s.announce(a)
			}
		}
	}
}

func (l *link) close() {
	close(l.done)
	for _, s := range l.speakers {
		_ = s.Close()
	}
	l.wait.Wait()
}
