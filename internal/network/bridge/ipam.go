package bridge

import (
	"fmt"
	"net/netip"
	"slices"

	"carob/internal/base/errkind"
)

// rememberedPods is how many detached pods may find their address again.
const rememberedPods = 512

// addresses hands out the addresses of one prefix. It is a plain value without
// lock or clock.
//
// A pod that comes back gets its old address if nobody has it (A4). A new pod
// gets the next address nobody had for the longest time: a freed address that
// went to another pod at once would receive the packets of the old one's clients.
type addresses struct {
	prefix netip.Prefix
	next   netip.Addr            // where the next search begins
	used   map[netip.Addr]string // address → sandbox
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

// free says whether an address may be given to a pod: not the network's, not the
// gateway's, not the broadcast address, not taken.
func (a *addresses) free(addr netip.Addr) bool {
	if !a.prefix.Contains(addr) || addr == a.prefix.Addr() || addr == a.gateway() {
		return false
	}
	if addr.Is4() && !a.prefix.Contains(addr.Next()) {
		return false
	}
	return a.used[addr] == ""
}

// acquire takes an address for a sandbox; kind Exhausted when there is none.
func (a *addresses) acquire(uid, sandbox string) (netip.Addr, error) {
	if i := slices.IndexFunc(a.past, func(p pastAddress) bool { return p.uid == uid }); i >= 0 {
		addr := a.past[i].addr
		a.past = slices.Delete(a.past, i, i+1)
		if a.free(addr) {
			a.used[addr] = sandbox
			return addr, nil
		}
	}
	remembered := map[netip.Addr]bool{}
	for _, p := range a.past {
		remembered[p.addr] = true
	}
	for addr, left := a.next, a.size(); left > 0; left-- {
		if !a.prefix.Contains(addr) {
			addr = a.gateway().Next()
		}
		if a.free(addr) && !remembered[addr] {
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

// size bounds a search; nobody runs more pods than this on one machine.
func (a *addresses) size() int {
	bits := a.prefix.Addr().BitLen() - a.prefix.Bits()
	return 1 << min(bits, 18)
}

// claim takes a certain address for a sandbox, as when state is read from disk.
func (a *addresses) claim(addr netip.Addr, sandbox string) error {
	if !a.free(addr) {
		return fmt.Errorf("address %s can't belong to sandbox %s", addr, sandbox)
	}
	a.past = slices.DeleteFunc(a.past, func(p pastAddress) bool { return p.addr == addr })
	a.used[addr] = sandbox
	return nil
}

// release frees an address and remembers whose it was.
func (a *addresses) release(addr netip.Addr, uid string) {
	delete(a.used, addr)
	a.remember(uid, addr)
}

func (a *addresses) remember(uid string, addr netip.Addr) {
	if !a.prefix.Contains(addr) {
		return
	}
	a.past = slices.DeleteFunc(a.past, func(p pastAddress) bool { return p.uid == uid || p.addr == addr })
	a.past = append(a.past, pastAddress{uid: uid, addr: addr})
	if len(a.past) > rememberedPods {
		a.past = slices.Delete(a.past, 0, len(a.past)-rememberedPods)
	}
}
