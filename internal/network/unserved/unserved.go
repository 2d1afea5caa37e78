// Package unserved rejects traffic to service addresses that are not served on this host: connections are refused at
// once, for pods and for the host's own processes. Otherwise the packets would leave through the default route, and
// another machine might have the address. Package app drives it; it must never depend on Services.
//
// A service data plane, including kube-proxy, redirects packets (DNAT) before the filter hooks, so
// these rules do not affect it.
package unserved

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Ranges are the service ranges of one carob. Its methods may be called at any time.
type Ranges struct {
	table  string
	ranges []netip.Prefix

	mu       sync.Mutex
	rejected []netip.Prefix // in the table as it was last written
}

// New changes nothing before Sync. The table has family inet and belongs to this package alone.
func New(table string, ranges []netip.Prefix) *Ranges {
	return &Ranges{table: table, ranges: slices.Clone(ranges)}
}

// Overlap is a range that is not rejected, because the host reaches part of it.
type Overlap struct{ Range, Route netip.Prefix }

// Sync rejects traffic to the ranges, except those into which the host has a route or an address:
// their addresses may be in use. Call it again when routes or rules may have changed; it does
// nothing if nothing has changed.
func (r *Ranges) Sync() ([]Overlap, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	routes, err := hostRoutes()
	if err != nil {
		return nil, err
	}
	free, taken := divide(r.ranges, routes)
	there, err := r.installed()
	if err != nil {
		return taken, err
	}
	if there && slices.Equal(free, r.rejected) {
		return taken, nil
	}
	if err := r.install(free); err != nil {
		return taken, err
	}
	r.rejected = free
	return taken, nil
}

// Remove removes the table; a missing table is not an error.
func Remove(table string) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: table})
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nftables table %s: %w", table, err)
	}
	return nil
}

// divide separates the ranges that only a default route reaches from those into which the host has
// a route or an address.
func divide(ranges, routes []netip.Prefix) (free []netip.Prefix, taken []Overlap) {
	for _, p := range ranges {
		if i := slices.IndexFunc(routes, func(r netip.Prefix) bool { return r.Bits() > 0 && r.Overlaps(p) }); i >= 0 {
			taken = append(taken, Overlap{p, routes[i]})
		} else {
			free = append(free, p)
		}
	}
	return free, taken
}

// halves are the two routes with which VPNs override the default route; together they reach
// everything.
const halves = 1

// hostRoutes returns the destinations of the host's routes in all tables, except default routes.
func hostRoutes() ([]netip.Prefix, error) {
	var list []netip.Prefix
	for {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_TABLE)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list routes of the host: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			ip, ok := netip.AddrFromSlice(r.Dst.IP)
			ones, _ := r.Dst.Mask.Size()
			// Multicast routes do not lead to an address.
			if ip = ip.Unmap(); ok && ones > halves && !ip.IsMulticast() {
				list = append(list, netip.PrefixFrom(ip, ones))
			}
		}
		return list, nil
	}
}

func (r *Ranges) installed() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == r.table }), nil
}

// install replaces the table in one transaction.
//
//	chain output, forward   filter        → chain unserved
//	chain unserved          to a range    → TCP: reset; others: ICMP, port unreachable
func (r *Ranges) install(ranges []netip.Prefix) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: r.table}
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	rule := func(c *nftables.Chain, parts ...[]expr.Any) {
		conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: slices.Concat(parts...)})
	}
	unserved := conn.AddChain(&nftables.Chain{Table: table, Name: "unserved"})
	for name, hook := range map[string]*nftables.ChainHook{"output": nftables.ChainHookOutput,
		"forward": nftables.ChainHookForward} {
		c := conn.AddChain(&nftables.Chain{Table: table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook,
			Priority: nftables.ChainPriorityFilter})
		// Addresses of the host itself are served (IPVS adds service addresses to a device).
		rule(c, []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: append([]byte("lo"), make([]byte, 14)...)},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: unserved.Name}})
	}
	tcp := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}}}
	for _, p := range ranges {
		to := destination(p)
		rule(unserved, to, tcp, []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
		rule(unserved, to,
			[]expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("install nftables table %s: %w", r.table, err)
	}
	return nil
}

// destination matches packets to a range, in a table for both families.
func destination(p netip.Prefix) []expr.Any {
	family, offset, length := byte(unix.NFPROTO_IPV4), uint32(16), uint32(4)
	if p.Addr().Is6() {
		family, offset, length = unix.NFPROTO_IPV6, 24, 16
	}
	mask := make([]byte, length)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: mask, Xor: make([]byte, length)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}
