package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"carob/internal/base/errkind"
	"carob/internal/network"
	"carob/internal/network/nft"
)

// rules are this network's nftables rules, one table for each address family:
//
//	chain guard       prerouting, raw   pods must not reach the host's loopback addresses, and others
//	                                    not the bridge's, where carob serves its pods
//	chain forward     filter            to pods: replies, host ports, other pods
//	chain prerouting  nat               packets for the host → chain hostports
//	chain output      nat               the same for the host's own packets
//	chain hostports                     maps: (protocol, port) and (address, protocol, port) → pod
//	chain postrouting nat               masquerade what leaves the pods' range, and what
//	                                    a pod or the loopback sends to a host port
//
// A pod without host ports changes nothing here. A third table, of family bridge, restricts what
// pods may send (antispoofing.go).
type rules struct {
	table, bridge string
	mac           net.HardwareAddr // of the bridge
	pods, pods6   netip.Prefix
	own           []netip.AddrPort // where carob itself listens
	elements      transactions     // that add and remove elements
}

// publication is one host port of one pod, in one address family.
type publication struct {
	proto    uint8
	hostIP   netip.Addr // unset: all
	hostPort uint16
	pod      netip.Addr
	podPort  uint16
}

// ctStatusDNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ctStatusDNAT = 0x20

var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

// checkPorts rejects invalid ports, and converts addresses to the form used in the rules.
func checkPorts(ports []network.PortMapping) error {
	for i, p := range ports {
		if p.HostPort == 0 {
			continue
		}
		if p.HostIP.Zone() != "" {
			return errkind.Errorf(errkind.Invalid, "host port %d: the address %s has a zone", p.HostPort, p.HostIP)
		}
		ports[i].HostIP = p.HostIP.Unmap()
		if protocols[strings.ToLower(p.Protocol)] == 0 || p.ContainerPort == 0 {
			return errkind.Errorf(errkind.Invalid,
				"port mapping %d→%d/%s needs a container port and the protocol tcp, udp, or sctp", p.HostPort,
				p.ContainerPort, p.Protocol)
		}
	}
	return nil
}

// checkPortsFree rejects a host port that another sandbox uses; the caller holds mu.
func (n *Network) checkPortsFree(pod network.Pod) error {
	wanted := map[uint16][]network.PortMapping{}
	for _, want := range pod.Ports {
		if want.HostPort != 0 {
			wanted[want.HostPort] = append(wanted[want.HostPort], want)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	for _, at := range n.attached {
		if at.Sandbox == pod.SandboxID {
			continue
		}
		for _, have := range at.Ports {
			for _, want := range wanted[have.HostPort] {
				if collide(want, have) {
					return errkind.Errorf(errkind.InUse, "host port %d/%s is taken by pod %s", want.HostPort,
						strings.ToLower(want.Protocol), at.Pod)
				}
			}
		}
	}
	return nil
}

// collide reports whether both ports can get the same packet. An unspecified address means all of its family.
func collide(a, b network.PortMapping) bool {
	if a.HostPort == 0 || a.HostPort != b.HostPort || !strings.EqualFold(a.Protocol, b.Protocol) {
		return false
	}
	if !a.HostIP.IsValid() || !b.HostIP.IsValid() || a.HostIP == b.HostIP {
		return true
	}
	return a.HostIP.Is4() == b.HostIP.Is4() && (a.HostIP.IsUnspecified() || b.HostIP.IsUnspecified())
}

// published returns an attachment's host ports for each of its addresses. Of two mappings of one host port the first
// counts, as with upstream's portmap plugin: validation lets a pod have "" and "0.0.0.0" as addresses of one port.
func (at *attachment) published() []publication {
	var list []publication
	taken := map[publication]bool{} // without the pod's ports
	for _, p := range at.Ports {
		for _, ip := range at.IPs {
			if p.HostPort == 0 || p.HostIP.IsValid() && p.HostIP.Is4() != ip.Is4() {
				continue
			}
			pub := publication{proto: protocols[strings.ToLower(p.Protocol)], hostPort: p.HostPort, pod: ip}
			if p.HostIP.IsValid() && !p.HostIP.IsUnspecified() {
				pub.hostIP = p.HostIP
			}
			if !taken[pub] {
				taken[pub] = true
				pub.podPort = p.ContainerPort
				list = append(list, pub)
			}
		}
	}
	return list
}

func (n *Network) published() []publication {
	var list []publication
	for _, at := range n.attached {
		if !at.leaving {
			list = append(list, at.published()...)
		}
	}
	return list
}

// installRules creates the tables for all attachments.
func (n *Network) installRules() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var pins []pin
	for _, at := range n.attached {
		if !at.leaving {
			pins = append(pins, at.pin())
		}
	}
	return n.rules.install(n.published(), pins)
}

// family has the differences between IPv4 and IPv6.
type family struct {
	nf                nftables.TableFamily
	proto             uint32 // for NAT expressions
	pods              netip.Prefix
	loopback          netip.Prefix
	addrLen           uint32
	saddr, daddr      uint32 // offsets in the header
	addrType          nftables.SetDatatype
	table             *nftables.Table
	anyPort, withAddr *nftables.Set
	hairpin           *nftables.Set
}

func (r *rules) families() []*family {
	var list []*family
	if r.pods.IsValid() {
		list = append(list, &family{nf: nftables.TableFamilyIPv4, proto: unix.NFPROTO_IPV4, pods: r.pods,
			loopback: netip.MustParsePrefix("127.0.0.0/8"),
			addrLen:  4, saddr: 12, daddr: 16, addrType: nftables.TypeIPAddr})
	}
	if r.pods6.IsValid() {
		list = append(list, &family{nf: nftables.TableFamilyIPv6, proto: unix.NFPROTO_IPV6, pods: r.pods6,
			loopback: netip.MustParsePrefix("::1/128"),
			addrLen:  16, saddr: 8, daddr: 24, addrType: nftables.TypeIP6Addr})
	}
	for _, f := range list {
		f.table = &nftables.Table{Family: f.nf, Name: r.table}
		target := nftables.MustConcatSetType(f.addrType, nftables.TypeInetService)
		f.anyPort = &nftables.Set{Table: f.table, Name: "hostports", IsMap: true, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService), DataType: target}
		f.withAddr = &nftables.Set{Table: f.table, Name: "hostports-addr", IsMap: true, Concatenation: true,
			KeyType:  nftables.MustConcatSetType(f.addrType, nftables.TypeInetProto, nftables.TypeInetService),
			DataType: target}
		f.hairpin = &nftables.Set{Table: f.table, Name: "hairpin", Concatenation: true,
			KeyType: nftables.MustConcatSetType(f.addrType, f.addrType)}
	}
	return list
}

// install replaces the tables in one transaction; traffic never sees an incomplete table.
func (r *rules) install(published []publication, pins []pin) error {
	conn, err := nftables.New(nft.Room())
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	for _, f := range r.families() {
		conn.AddTable(f.table)
		conn.DelTable(f.table)
		conn.AddTable(f.table)
		if err := r.addFamily(conn, f); err != nil {
			return err
		}
		if err := f.add(conn, published); err != nil {
			return err
		}
	}
	if err := r.installPins(conn, pins); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("install nftables tables %s: %w", r.table, err)
	}
	return nil
}

func (r *rules) addFamily(conn *nftables.Conn, f *family) error {
	for _, s := range []*nftables.Set{f.anyPort, f.withAddr, f.hairpin} {
		if err := conn.AddSet(s, nil); err != nil {
			return fmt.Errorf("add nftables set %s: %w", s.Name, err)
		}
	}
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook,
		prio *nftables.ChainPriority) *nftables.Chain {
		return conn.AddChain(&nftables.Chain{Table: f.table, Name: name, Type: kind, Hooknum: hook, Priority: prio})
	}
	rule := func(c *nftables.Chain, parts ...[]expr.Any) {
		conn.AddRule(&nftables.Rule{Table: f.table, Chain: c, Exprs: slices.Concat(parts...)})
	}
	forward := chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	guard := chain("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	hostports := chain("hostports", "", nil, nil)
	pre := chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	out := chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	post := chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)

	from := func(op expr.CmpOp, device string) []expr.Any {
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Cmp{Op: op, Register: 1, Data: ifname(device)}}
	}
	fromBridge := from(expr.CmpOpEq, r.bridge)
	toBridge := func(op expr.CmpOp) []expr.Any {
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: op, Register: 1, Data: ifname(r.bridge)}}
	}
	drop := []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	masquerade := []expr.Any{&expr.Masq{}}

	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	has := func(key expr.CtKey, bits uint32) []expr.Any {
		return []expr.Any{&expr.Ct{Key: key, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits),
				Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}}
	}
	rule(forward, toBridge(expr.CmpOpNeq), accept)
	rule(forward, has(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept)
	rule(forward, fromBridge, accept)
	rule(forward, has(expr.CtKeySTATUS, ctStatusDNAT), accept)
	rule(forward, drop)

	rule(guard, fromBridge, f.within(f.daddr, f.loopback, expr.CmpOpEq), drop)
	own := f.pods.Masked().Addr().Next()
	rule(guard, from(expr.CmpOpNeq, r.bridge), from(expr.CmpOpNeq, "lo"),
		f.within(f.daddr, netip.PrefixFrom(own, own.BitLen()), expr.CmpOpEq), drop)
	if f.nf == nftables.TableFamilyIPv6 {
		// The kernel lets no answer of a pod reach ::1. Without a translation, a client of "localhost" is refused at
		// once if no process listens there, and tries 127.0.0.1.
		rule(out, f.within(f.saddr, f.loopback, expr.CmpOpEq), []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
	}
	for _, c := range []*nftables.Chain{pre, out} {
		rule(c, []expr.Any{&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: "hostports"}})
	}
	// Data arrives in register 1 (address) and after it (port); 32-bit registers count from 8.
	behindAddr := 8 + f.addrLen/4
	dnat := []expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: f.proto, RegAddrMin: 1, RegProtoMin: behindAddr,
		Specified: true}}
	protoAndPort := func(reg uint32) []expr.Any {
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			&expr.Payload{DestRegister: reg + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
	}
	for _, own := range r.own {
		if own.Addr().Is4() != (f.nf == nftables.TableFamilyIPv4) && !own.Addr().IsUnspecified() {
			continue
		}
		var to []expr.Any
		if !own.Addr().IsUnspecified() {
			to = f.within(f.daddr, netip.PrefixFrom(own.Addr(), own.Addr().BitLen()), expr.CmpOpEq)
		}
		rule(hostports, to, []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}}},
			equal(expr.PayloadBaseTransportHeader, 2, binaryutil.BigEndian.PutUint16(own.Port())),
			[]expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
	}
	rule(hostports, []expr.Any{f.load(f.daddr, 8)}, protoAndPort(behindAddr), lookup(f.withAddr, true), dnat)
	rule(hostports, protoAndPort(8), lookup(f.anyPort, true), dnat)

	rule(post, []expr.Any{f.load(f.saddr, 8), f.load(f.daddr, behindAddr)}, lookup(f.hairpin, false), masquerade)
	rule(post, f.within(f.saddr, f.loopback, expr.CmpOpEq), toBridge(expr.CmpOpEq), masquerade)
	multicast := netip.MustParsePrefix("224.0.0.0/4")
	if f.nf == nftables.TableFamilyIPv6 {
		multicast = netip.MustParsePrefix("ff00::/8")
	}
	rule(post, f.within(f.saddr, f.pods, expr.CmpOpEq), f.within(f.daddr, f.pods, expr.CmpOpNeq),
		f.within(f.daddr, multicast, expr.CmpOpNeq),
		toBridge(expr.CmpOpNeq), masquerade)
	return nil
}

func (f *family) load(offset, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.addrLen}
}

func (f *family) within(offset uint32, p netip.Prefix, op expr.CmpOp) []expr.Any {
	return []expr.Any{f.load(offset, 1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: f.addrLen, Mask: ipNet(p).Mask,
			Xor: make([]byte, f.addrLen)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Masked().Addr().AsSlice()}}
}

// lookup searches a set for the registers from the first one on; a map's value is stored there.
func lookup(s *nftables.Set, isMap bool) []expr.Any {
	l := &expr.Lookup{SourceRegister: 8, SetName: s.Name, SetID: s.ID}
	if isMap {
		l.IsDestRegSet, l.DestRegister = true, 1
	}
	return []expr.Any{l}
}

func ifname(name string) []byte {
	b := make([]byte, 16)
	copy(b, name)
	return b
}

// word pads to whole registers, as concatenations require.
func word(b ...byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func port(p uint16) []byte { return word(byte(p>>8), byte(p)) }

// elements are what a publication adds to the sets of its family.
func (f *family) elements(pub publication) (ports *nftables.Set, port_, hairpin nftables.SetElement) {
	target := slices.Concat(pub.pod.AsSlice(), port(pub.podPort))
	key := slices.Concat(word(pub.proto), port(pub.hostPort))
	ports = f.anyPort
	if pub.hostIP.IsValid() {
		ports, key = f.withAddr, slices.Concat(pub.hostIP.AsSlice(), key)
	}
	return ports, nftables.SetElement{Key: key, Val: target},
		nftables.SetElement{Key: slices.Concat(pub.pod.AsSlice(), pub.pod.AsSlice())}
}

func (f *family) add(conn *nftables.Conn, published []publication) error {
	all := map[*nftables.Set][]nftables.SetElement{}
	f.collect(all, published)
	return addElements(conn, all)
}

// collect adds the elements of the family's publications, each once: of what a transaction deletes twice, the second
// is missing. The publications of one address follow each other.
func (f *family) collect(all map[*nftables.Set][]nftables.SetElement, published []publication) {
	var last netip.Addr
	for _, pub := range published {
		if (pub.pod.Is4()) != (f.nf == nftables.TableFamilyIPv4) {
			continue
		}
		set, element, pair := f.elements(pub)
		all[set] = append(all[set], element)
		if pub.pod != last {
			all[f.hairpin], last = append(all[f.hairpin], pair), pub.pod
		}
	}
}

// mostElements is how many elements one message has: its length is limited, and each message takes room for its reply.
const mostElements = 256

func addElements(conn *nftables.Conn, all map[*nftables.Set][]nftables.SetElement) error {
	for set, list := range all { // any order: sets are independent
		for part := range slices.Chunk(list, mostElements) {
			if err := conn.SetAddElements(set, part); err != nil {
				return fmt.Errorf("add to nftables set %s: %w", set.Name, err)
			}
		}
	}
	return nil
}

// publish allows a pod to send and opens its host ports; repeating it is not an error.
func (r *rules) publish(published []publication, p pin) error {
	return r.elements.run("allow the pod to send and publish its host ports", func(conn *nftables.Conn) error {
		if len(published) > 0 {
			for _, f := range r.families() {
				if err := f.add(conn, published); err != nil {
					return err
				}
			}
		}
		return r.pinTable().add(conn, []pin{p})
	})
}

// unpublish closes host ports and stops the pod from sending; missing elements are not an error.
func (r *rules) unpublish(published []publication, p pin) error {
	all := map[*nftables.Set][]nftables.SetElement{}
	t := r.pinTable()
	for _, ip := range p.ips {
		all[t.set(ip)] = append(all[t.set(ip)], p.element(ip)...)
	}
	if len(published) > 0 {
		for _, f := range r.families() {
			f.collect(all, published)
		}
	}
	// One missing element fails the whole transaction. To add what exists changes nothing, so after this all exist.
	if r.deleteElements(all, nil) == nil || r.deleteElements(all, all) == nil {
		return nil
	}
	// Whole sets are missing, or the elements are another pod's.
	var errs []error
	for set, list := range all {
		for i := range list {
			err := r.deleteElements(map[*nftables.Set][]nftables.SetElement{set: list[i : i+1]}, nil)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// deleteElements is one transaction, which adds elements first.
func (r *rules) deleteElements(all, first map[*nftables.Set][]nftables.SetElement) error {
	return r.elements.run("remove a pod from the tables", func(conn *nftables.Conn) error {
		if err := addElements(conn, first); err != nil {
			return err
		}
		for set, list := range all {
			for part := range slices.Chunk(list, mostElements) {
				if err := conn.SetDeleteElements(set, part); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// complete reports whether all chains of carob exist.
func (r *rules) complete() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) { // they are changing: another notification follows
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("list nftables chains: %w", err)
	}
	have := map[nftables.TableFamily]int{}
	for _, c := range chains {
		if c.Table.Name == r.table {
			have[c.Table.Family]++
		}
	}
	for _, f := range r.families() {
		if have[f.nf] < chainsOfFamily {
			return false, nil
		}
	}
	return have[nftables.TableFamilyBridge] == chainsOfPins, nil
}

// The number of chains in the tables.
const chainsOfFamily, chainsOfPins = 6, 2

// restoreRules creates the tables again after they were removed from outside.
func (n *Network) restoreRules() (bool, error) {
	if ok, err := n.rules.complete(); ok || err != nil {
		return false, err
	}
	return true, n.installRules()
}

// tableFamilies are the families in which we may have a table.
var tableFamilies = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6,
	nftables.TableFamilyBridge}

// remove deletes the tables.
func (r *rules) remove() error {
	var errs []error
	for _, f := range tableFamilies {
		conn, err := nftables.New()
		if err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		conn.DelTable(&nftables.Table{Family: f, Name: r.table})
		if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove nftables table %s: %w", r.table, err))
		}
	}
	return errors.Join(errs...)
}
