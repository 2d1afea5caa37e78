package bridge

import (
	"fmt"
	"net/netip"
	"slices"

	"carob/internal/base/errkind"
)

// reservedPods is the number of detached pods whose addresses are kept for them.
const reservedPods = 512

// addresses allocates the addresses of one prefix. It is a plain value without lock or clock.
//
// A pod that is attached again gets its previous address if it is free. A new pod gets the
// address that has been free for the longest time: if a freed address were reused at once, the new
// pod would receive packets of the old pod's clients.
type addresses struct {
	prefix netip.Prefix
	next   netip.Addr            // start of the next search
	used   map[netip.Addr]string // address → sandbox, or path of a spare place
	past   []pastAddress         // of detached pods, oldest first
}

type pastAddress struct {
	uid  string
	addr netip.Addr
}

func newAddresses(prefix netip.Prefix) *addresses {
	prefix = prefix.Masked()
	a := &addresses{prefix: prefix, used: map[netip.Addr]string{}}
	a.next = a.gateway().Next()
	return a
}

// gateway is the first address: the bridge's own.
func (a *addresses) gateway() netip.Addr { return a.prefix.Addr().Next() }

// free reports whether an address can be allocated: not the network's, the gateway's, or the
// broadcast address, and not in use.
func (a *addresses) free(addr netip.Addr) bool {
	if !a.prefix.Contains(addr) || addr == a.prefix.Addr() || addr == a.gateway() {
		return false
	}
	if addr.Is4() && !a.prefix.Contains(addr.Next()) {
		return false
	}
	return a.used[addr] == ""
}

// acquire allocates an address for a sandbox; kind Exhausted if none is free.
func (a *addresses) acquire(uid, sandbox string) (netip.Addr, error) {
	if i := slices.IndexFunc(a.past, func(p pastAddress) bool { return p.uid == uid }); i >= 0 && uid != "" {
		addr := a.past[i].addr
		a.past = slices.Delete(a.past, i, i+1)
		if a.free(addr) {
			a.used[addr] = sandbox
			return addr, nil
		}
	}
	reserved := map[netip.Addr]bool{}
	for _, p := range a.past {
		reserved[p.addr] = true
	}
	for addr, left := a.next, a.size(); left > 0; left-- {
		if !a.prefix.Contains(addr) {
			addr = a.gateway().Next()
		}
		if a.free(addr) && !reserved[addr] {
			a.used[addr], a.next = sandbox, addr.Next()
			return addr, nil
		}
		addr = addr.Next()
	}
	for i, p := range a.past {
		if a.free(p.addr) {
			a.past = slices.Delete(a.past, i, i+1)
			a.used[p.addr] = sandbox
			return p.addr, nil
		}
	}
	return netip.Addr{}, errkind.Errorf(errkind.Exhausted, "all addresses of %s are in use", a.prefix)
}

// isReserved reports whether the address of a detached pod is reserved for it.
func (a *addresses) isReserved(uid string) bool {
	return slices.ContainsFunc(a.past, func(p pastAddress) bool { return p.uid == uid })
}

// size limits a search; one machine does not run more pods than this.
func (a *addresses) size() int {
	bits := a.prefix.Addr().BitLen() - a.prefix.Bits()
	return 1 << min(bits, 18)
}

// claim allocates a specific address for a sandbox, for example one read from disk.
func (a *addresses) claim(addr netip.Addr, sandbox string) error {
	if !a.free(addr) {
		return fmt.Errorf("address %s cannot be allocated to sandbox %s", addr, sandbox)
	}
	a.past = slices.DeleteFunc(a.past, func(p pastAddress) bool { return p.addr == addr })
	a.used[addr] = sandbox
	return nil
}

// release frees an address and records its pod, if it had one.
func (a *addresses) release(addr netip.Addr, uid string) {
	delete(a.used, addr)
	if uid != "" {
		a.reserve(uid, addr)
	}
}

func (a *addresses) reserve(uid string, addr netip.Addr) {
	if !a.prefix.Contains(addr) {
		return
	}
	a.past = slices.DeleteFunc(a.past, func(p pastAddress) bool { return p.uid == uid || p.addr == addr })
	a.past = append(a.past, pastAddress{uid: uid, addr: addr})
	if len(a.past) > reservedPods {
		a.past = slices.Delete(a.past, 0, len(a.past)-reservedPods)
	}
}
