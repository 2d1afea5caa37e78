package services

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"

	"carob/internal/base/errkind"
)

// addresses hands out the addresses of one range. The set lives in memory only:
// one process serves the API, and it fills the set from the stored services at boot.
type addresses struct {
	prefix netip.Prefix
	size   uint64 // usable addresses: without the range's first and last
	// Random allocation keeps to the upper part, so that addresses asked for by
	// number, which people take from the lower end, seldom collide.
	reserved uint64

	mu   sync.Mutex
	used map[netip.Addr]struct{}
}

// maxRange bounds how many addresses of a (IPv6) range are used.
const maxRange = 1 << 16

func newAddresses(prefix netip.Prefix) (*addresses, error) {
	prefix = prefix.Masked()
	bits := prefix.Addr().BitLen() - prefix.Bits()
	if bits < 3 {
		return nil, errkind.Errorf(errkind.Invalid, "the service range %v is too small: it needs at least 8 addresses", prefix)
	}
	size := uint64(maxRange)
	if bits < 16 {
		size = 1 << bits
	}
	a := &addresses{prefix: prefix, size: size - 2, used: map[netip.Addr]struct{}{}}
	a.reserved = min(max(16, size/16), 256)
	if a.reserved >= a.size {
		a.reserved = 0
	}
	return a, nil
}

// at returns the i-th usable address, counted from 0.
func (a *addresses) at(i uint64) netip.Addr {
	b := a.prefix.Addr().As16()
	for k, carry := 15, i+1; k >= 0 && carry > 0; k-- {
		carry += uint64(b[k])
		b[k] = byte(carry)
		carry >>= 8
	}
	addr := netip.AddrFrom16(b)
	if a.prefix.Addr().Is4() {
		return addr.Unmap()
	}
	return addr
}

// first is the address of the kubernetes Service.
func (a *addresses) first() netip.Addr { return a.at(0) }

// take marks addr as used.
func (a *addresses) take(addr netip.Addr) error {
	if !a.prefix.Contains(addr) || addr == a.prefix.Addr() || addr == a.at(a.size) {
		return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %v", addr, a.prefix)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.used[addr]; ok {
		return fmt.Errorf("provided IP is already allocated")
	}
	a.used[addr] = struct{}{}
	return nil
}

// next takes a free address.
func (a *addresses) next() (netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, part := range [][2]uint64{{a.reserved, a.size}, {0, a.reserved}} {
		n := part[1] - part[0]
		if n == 0 {
			continue
		}
		start := rand.Uint64N(n)
		for i := range n {
			addr := a.at(part[0] + (start+i)%n)
			if _, ok := a.used[addr]; !ok {
				a.used[addr] = struct{}{}
				return addr, nil
			}
		}
	}
	return netip.Addr{}, errkind.Errorf(errkind.Exhausted, "range is full")
}

func (a *addresses) release(addr netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.used, addr)
}

// ports hands out node ports. The same number may be used once per protocol.
type ports struct {
	low, high int
	mu        sync.Mutex
	used      map[port]struct{}
}

type port struct {
	protocol string
	number   int
}

func newPorts(low, high int) (*ports, error) {
	if low < 1 || high > 65535 || low > high {
		return nil, errkind.Errorf(errkind.Invalid, "the node port range %d-%d is not within 1-65535", low, high)
	}
	return &ports{low: low, high: high, used: map[port]struct{}{}}, nil
}

func (p *ports) take(want port) error {
	if want.number < p.low || want.number > p.high {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", p.low, p.high)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.used[want]; ok {
		return fmt.Errorf("provided port is already allocated")
	}
	p.used[want] = struct{}{}
	return nil
}

// next takes a number that no protocol uses, so that a service can later offer
// the same one for another protocol.
func (p *ports) next(protocol string) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.high - p.low + 1
	start := rand.IntN(n)
	for i := range n {
		number := p.low + (start+i)%n
		if p.free(number) {
			p.used[port{protocol, number}] = struct{}{}
			return number, nil
		}
	}
	return 0, errkind.Errorf(errkind.Exhausted, "range is full")
}

func (p *ports) free(number int) bool {
	for _, protocol := range []string{"TCP", "UDP", "SCTP"} {
		if _, ok := p.used[port{protocol, number}]; ok {
			return false
		}
	}
	return true
}

func (p *ports) release(used port) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, used)
}
