package services

import (
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	core "carob/internal/core/netplan/services"
	"carob/internal/network/nft"
)

// Priorities of the base chains. Sources are checked before DNAT, and connections to Services without endpoints are
// refused before the filters of other programs: a firewall that drops unknown traffic would hide the refusal.
const (
	prioGuard  nftables.ChainPriority = -110
	prioDNAT   nftables.ChainPriority = -100
	prioRefuse nftables.ChainPriority = -5
	prioSNAT   nftables.ChainPriority = 100
)

// rule collects expressions. Registers are counted in words of 32 bits from 0.
type rule []expr.Any

func reg(word int) uint32 { return uint32(unix.NFT_REG32_00 + word) }

// words is the length of an address.
func (c codec) words() int {
	if c.v6 {
		return 4
	}
	return 1
}

func (c codec) source(to int) expr.Any {
	if c.v6 {
		return network(8, 16, to)
	}
	return network(12, 4, to)
}

func (c codec) destination(to int) expr.Any {
	if c.v6 {
		return network(24, 16, to)
	}
	return network(16, 4, to)
}

func network(offset, length uint32, to int) expr.Any {
	return &expr.Payload{DestRegister: reg(to), Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

// port loads protocol and destination port.
func port(to int) rule {
	return rule{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(to)},
		&expr.Payload{DestRegister: reg(to + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

// sourcePort loads the source port of TCP, UDP, and SCTP.
func sourcePort(to int) expr.Any {
	return &expr.Payload{DestRegister: reg(to), Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2}
}

// where is one of the two kinds of keys: of addresses with ports, or of node ports.
type where struct {
	sets string // how the names of its sets end
	key  rule   // loads the key of a packet
}

func (c codec) vip() where {
	return where{"", append(rule{c.destination(0)}, port(c.words())...)}
}

func (c codec) nodePort() where { return where{ports, port(0)} }

// in matches if the registers from 0 on are in a set.
func in(set string) expr.Any { return &expr.Lookup{SourceRegister: reg(0), SetName: set} }

// note keeps a register in the packet's priority, and noted loads it from there. nft cannot list a rule that uses the
// result of another lookup as a key (version 1.0.6 even fails an assertion, and firewalld with it), so the result is
// stored in the packet. Only the first packet of a connection gets here, and it leaves with the priority 0; forwarded
// packets get another one later anyway.
func note(from int) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg(from)}
}

func noted(to int) expr.Any { return &expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg(to)} }

// unnote resets the priority, using a free register.
func unnote(free int) rule {
	return rule{&expr.Immediate{Register: reg(free), Data: make([]byte, 4)}, note(free)}
}

// find looks up the registers from a word on in a map; the data is stored in the registers from `to` on.
func find(set string, from, to int) expr.Any {
	return &expr.Lookup{SourceRegister: reg(from), SetName: set, DestRegister: reg(to), IsDestRegSet: true}
}

func verdict(kind expr.VerdictKind, chain string) expr.Any {
	return &expr.Verdict{Kind: kind, Chain: chain}
}

func bits(key expr.CtKey, mask uint32, op expr.CmpOp) rule {
	return rule{&expr.Ct{Key: key, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(mask),
			Xor:  make([]byte, 4)},
		&expr.Cmp{Op: op, Register: reg(0), Data: make([]byte, 4)}}
}

// ctStatusDNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ctStatusDNAT = 0x20

func isNew() rule   { return bits(expr.CtKeySTATE, expr.CtStateBitNEW, expr.CmpOpNeq) }
func hasDNAT() rule { return bits(expr.CtKeySTATUS, ctStatusDNAT, expr.CmpOpNeq) }
func noDNAT() rule  { return bits(expr.CtKeySTATUS, ctStatusDNAT, expr.CmpOpEq) }

// fromNode matches packets whose source is an address of this host.
func fromNode() rule {
	return rule{&expr.Fib{Register: reg(0), ResultADDRTYPE: true, FlagSADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)}}
}

// within compares the source with a range.
func (c codec) within(p netip.Prefix, op expr.CmpOp) rule {
	return rule{c.source(0), c.masked(0, p.Bits()),
		&expr.Cmp{Op: op, Register: reg(0), Data: p.Masked().Addr().AsSlice()}}
}

// masked keeps the first bits of the address in the registers from a word on.
func (c codec) masked(word, length int) expr.Any {
	size := 4 * c.words()
	mask := make([]byte, size)
	for i := range length {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return &expr.Bitwise{SourceRegister: reg(word), DestRegister: reg(word), Len: uint32(size), Mask: mask,
		Xor: make([]byte, size)}
}

func join(parts ...[]expr.Any) []expr.Any { return slices.Concat(parts...) }

// chains are those that depend on no Service.
//
//	guard-…     prerouting, output          sources of a balancer's address → sources
//	nat-…       prerouting, output          → services: VIPs, then → node-ports; both → pick-N-T,
//	                                        inside-N-T, pick-first
//	filter-…    input, forward, output      new connections without DNAT → refuse, refuse-node-ports, which
//	                                        drop packets, or → reject-chain
//	postrouting                             what is marked, and hairpin connections: masquerade
func (c codec) chains(n core.Node) []nft.Chain {
	base := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, prio nftables.ChainPriority,
		rules ...[]expr.Any) nft.Chain {
		return nft.Chain{Name: name, Base: &nft.Base{Type: kind, Hook: hook, Priority: prio}, Rules: rules}
	}
	to := func(chain string) rule { return rule{verdict(expr.VerdictJump, chain)} }
	vip, nodePort := c.vip(), c.nodePort()
	guard := join(isNew(), vip.key, rule{in(core.Guarded.String()), verdict(expr.VerdictGoto, "allow-sources")})
	refuse := join(isNew(), noDNAT(), to("refuse"))
	refused := func(w where) [][]expr.Any {
		return [][]expr.Any{
			join(w.key, rule{in(core.Reject.String() + w.sets), verdict(expr.VerdictGoto, chainReject)}),
			join(w.key, rule{in(core.Drop.String() + w.sets), verdict(expr.VerdictDrop, "")}),
		}
	}
	return []nft.Chain{
		{Name: chainReject, Rules: c.reject()},
		{Name: "refuse", Rules: append(refused(vip),
			join(rule{c.destination(0), in(core.ClusterIPs.String()), verdict(expr.VerdictGoto, chainReject)}))},
		{Name: "refuse-node-ports", Rules: refused(nodePort)},
		{Name: "allow-sources", Rules: [][]expr.Any{
			join(vip.key, rule{c.source(c.words() + 2), in(core.Sources.String()), verdict(expr.VerdictReturn, "")}),
			{verdict(expr.VerdictDrop, "")},
		}},
		{Name: chainFirst, Rules: c.pickFirst()},
		{Name: "node-ports", Rules: c.dispatch(n, nodePort)},
		{Name: "services", Rules: append(append([][]expr.Any{c.outside(n)}, c.dispatch(n, vip)...),
			join(rule{c.destination(0), in(core.NodeIPs.String()), verdict(expr.VerdictGoto, "node-ports")}))},
		base("guard-prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, prioGuard, guard),
		base("guard-output", nftables.ChainTypeFilter, nftables.ChainHookOutput, prioGuard, guard),
		base("nat-prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, prioDNAT, to("services")),
		base("nat-output", nftables.ChainTypeNAT, nftables.ChainHookOutput, prioDNAT, to("services")),
		base("filter-input", nftables.ChainTypeFilter, nftables.ChainHookInput, prioRefuse, refuse,
			join(isNew(), noDNAT(), rule{c.destination(0), in(core.NodeIPs.String())}, to("refuse-node-ports"))),
		base("filter-forward", nftables.ChainTypeFilter, nftables.ChainHookForward, prioRefuse, refuse),
		base("filter-output", nftables.ChainTypeFilter, nftables.ChainHookOutput, prioRefuse, refuse),
		base("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, prioSNAT, c.masquerade()...),
	}
}

// chainReject refuses a connection and notifies the client. Its name is kube-proxy's: `reject` is a keyword of nft.
const chainReject = "reject-chain"

// reject are the rules of chainReject: TCP is answered by a reset, other protocols by ICMP.
func (c codec) reject() [][]expr.Any {
	const portUnreachable, portUnreachable6 = 3, 4 // codes of ICMP and ICMPv6
	code := uint8(portUnreachable)
	if c.v6 {
		code = portUnreachable6
	}
	return [][]expr.Any{
		{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(0)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: []byte{unix.IPPROTO_TCP}},
			&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}},
		{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}},
	}
}

// markMasquerade is the bit of the packet mark that is set between DNAT and postrouting on packets to
// masquerade. It is the one that kube-proxy uses, with the same meaning (N0.14).
const markMasquerade = 0x4000

// mark changes the bit: sets it, or clears it.
func mark(set bool) rule {
	bit := uint32(0)
	if set {
		bit = markMasquerade
	}
	return rule{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Xor: binaryutil.NativeEndian.PutUint32(bit),
			Mask: binaryutil.NativeEndian.PutUint32(^uint32(markMasquerade))},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg(0)}}
}

func marked() rule {
	return rule{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Xor: make([]byte, 4),
			Mask: binaryutil.NativeEndian.PutUint32(markMasquerade)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: make([]byte, 4)}}
}

// dispatch finds the target of a key, and marks packets that must have the node as their source (N2.32, N2.33).
func (c codec) dispatch(n core.Node, w where) [][]expr.Any {
	at := func(m core.Set) rule { return append(slices.Clone(w.key), find(m.String()+w.sets, 0, 0), note(0)) }
	follow := func(picks string) rule {
		return rule{noted(0),
			&expr.Lookup{SourceRegister: reg(0), SetName: picks, DestRegister: unix.NFT_REG_VERDICT,
				IsDestRegSet: true}}
	}
	first := func(m core.Set) rule {
		return append(slices.Clone(w.key), find(m.String()+lists+w.sets, 0, 0), note(0),
			verdict(expr.VerdictJump, chainFirst))
	}
	var out [][]expr.Any
	for _, pods := range n.Pods {
		out = append(out, join(c.within(pods, expr.CmpOpEq), at(core.Inside), follow(setInsidePicks)),
			join(c.within(pods, expr.CmpOpEq), first(core.Inside)))
	}
	return append(out,
		join(fromNode(), at(core.Inside), mark(true), follow(setInsidePicks)),
		join(fromNode(), first(core.Inside)),
		join(w.key, rule{in(core.Masquerade.String() + w.sets)}, mark(true)),
		join(at(core.Dispatch), follow(setPicks)),
		first(core.Dispatch))
}

// outside marks packets to cluster IPs from sources that are not pods of this node (N2.21).
func (c codec) outside(n core.Node) []expr.Any {
	out := rule{c.destination(0), in(core.ClusterIPs.String())}
	for _, pods := range n.Pods {
		out = append(out, c.within(pods, expr.CmpOpNeq)...)
	}
	return join(out, mark(true))
}

// masquerade is for packets that are marked, and for endpoints that reach themselves (N2.39). The client's port is
// kept if it is free, so that a connection that the kernel has lost gets the same translation again.
func (c codec) masquerade() [][]expr.Any {
	masq := rule{&expr.Masq{}}
	return [][]expr.Any{
		join(marked(), mark(false), masq),
		join(hasDNAT(), rule{c.source(0), c.destination(c.words()), in(core.Hairpin.String())}, masq),
	}
}

// pickChains choose one of N endpoints, for each way in which a key was found.
func (c codec) pickChains(class core.Class) []nft.Chain {
	return []nft.Chain{
		{Name: chainOf("pick", class), Rules: c.pick(class, core.Dispatch)},
		{Name: chainOf("inside", class), Rules: c.pick(class, core.Inside)},
	}
}

// hashSeed is given because the kernel makes a random one for each rule otherwise, also when the next process writes
// the same rules again.
const hashSeed = 1

// registers are the first words of what the chains that choose keep in registers, for addresses of a words:
//
//	0     1 …         1+a     2+a 3+a      4+a …
//	list, client (a), member, list, index, endpoint (a+1); before it: client and its port (a+1)
type registers struct{ client, member, list, index, endpoint int }

func (c codec) registers() registers {
	a := c.words()
	return registers{client: 1, member: 1 + a, list: 2 + a, index: 3 + a, endpoint: 4 + a}
}

// nat sends the connection to the endpoint in the registers.
func (c codec) nat() rule {
	family := uint32(unix.NFPROTO_IPV4)
	if c.v6 {
		family = unix.NFPROTO_IPV6
	}
	r := c.registers()
	return append(unnote(0), &expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: reg(r.endpoint),
		RegProtoMin: reg(r.endpoint + c.words()), Specified: true})
}

// found loads the endpoint of the member in the registers.
func (r registers) found() rule {
	return rule{note(r.member), noted(r.member), find(core.Members.String(), r.member, r.endpoint)}
}

// pick chooses for the key of a VIP, or else of a node port. It chooses by a hash of the client's address and port:
// after the kernel has lost a connection (conntrack -F), its next packet finds the same endpoint, as long as the list
// is the same.
func (c codec) pick(class core.Class, from core.Set) [][]expr.Any {
	r, nat := c.registers(), c.nat()
	hash := rule{noted(r.list), c.source(r.endpoint), sourcePort(r.endpoint + c.words()),
		&expr.Hash{SourceRegister: reg(r.endpoint), DestRegister: reg(r.index), Length: uint32(4 * (c.words() + 1)),
			Modulus: class.N, Seed: hashSeed, Type: expr.HashTypeJenkins}}
	track := func(op uint32) rule {
		d := &expr.Dynset{SrcRegKey: reg(0), SrcRegData: reg(r.member), SetName: setAffinity, Operation: op}
		if op == unix.NFT_DYNSET_OP_UPDATE {
			d.Timeout = time.Duration(class.Timeout) * time.Second
		}
		return rule{d}
	}
	var out [][]expr.Any
	each := func(f func(start rule) []expr.Any) {
		for _, w := range []where{c.vip(), c.nodePort()} {
			out = append(out, f(append(slices.Clone(w.key), find(from.String()+lists+w.sets, 0, 0), note(0))))
		}
	}
	if class.Timeout == 0 {
		each(func(start rule) []expr.Any {
			return join(start, hash, rule{find(core.Endpoints.String(), r.list, r.endpoint)}, nat)
		})
		return out
	}
	client := rule{noted(0), c.source(r.client)}
	recall := rule{find(setAffinity, 0, r.member)}
	slot := append(slices.Clone(hash), find(core.Slots.String(), r.list, r.member))
	// A client keeps its member if that is still in the list; this restarts its timeout.
	each(func(start rule) []expr.Any {
		return join(start, client, recall, r.found(), track(unix.NFT_DYNSET_OP_UPDATE), nat)
	})
	each(func(start rule) []expr.Any { return join(start, client, rule{noted(r.member)}, track(dynsetDelete)) })
	each(func(start rule) []expr.Any {
		return join(start, client, slot, r.found(), track(unix.NFT_DYNSET_OP_UPDATE), nat)
	})
	// If no more clients can be stored, further ones are distributed without affinity.
	each(func(start rule) []expr.Any { return join(start, slot, r.found(), nat) })
	return out
}

// chainFirst is where packets go for which a pick chain has found no endpoint.
const chainFirst = "pick-first"

// pickFirst sends a packet to the first endpoint of the list in its priority. A packet that is in the rules while they
// change uses the old chains with the new sets: its list may now be shorter than the range from which the old chain
// chooses, the chain of its new class is still empty for it, and its old class is no longer in the map. Each list that
// is not empty has an endpoint at its first index.
func (c codec) pickFirst() [][]expr.Any {
	r, nat := c.registers(), c.nat()
	start := rule{noted(r.list), &expr.Immediate{Register: reg(r.index), Data: make([]byte, 4)}}
	return [][]expr.Any{
		join(start, rule{find(core.Endpoints.String(), r.list, r.endpoint)}, nat),
		join(start, rule{find(core.Slots.String(), r.list, r.member)}, r.found(), nat),
	}
}

// dynsetDelete is NFT_DYNSET_OP_DELETE of linux/netfilter/nf_tables.h.
const dynsetDelete = 2
