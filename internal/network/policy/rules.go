package policy

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"carob/internal/core/netplan/policies"
	"carob/internal/network/nft"
)

// The table of one address family, which exists while a pod of this node is isolated:
//
//	chain egress      forward, -10   replies → accept; source → map isolated-out
//	chain ingress     forward, -9    replies → accept; destination → map isolated-in
//	map isolated-out, isolated-in    address → chain out-…, in-…, which ends with drop
//	chain out-…, in-…                of a list of policies: jump to each; to itself → accept; drop
//	chain policy-out-…, policy-in-…  of one policy: a rule for each peer and port → accept, or for each peer → jump
//	chain ports-out-…, ports-in-…    of one rule of a policy: a rule for each port → accept
//	set peers         (group, address)        pods that a selector matches
//	set named         (name, address, port)   where pods have a port of this name
//	set own           (address, address)      of each isolated pod
//	set blocks-…      ranges of addresses, of one rule
//	set ports-…       ranges of ports, of one rule
//
// An accept ends only its own base chain: a packet that may leave its source is then judged by the
// ingress of its destination. Groups and names are 128 bits of a hash: no text of a user gets here, except comments,
// which nft checks. Adding or removing a group changes only elements.
const (
	chainEgress, chainIngress      = "egress", "ingress"
	mapOut, mapIn                  = "isolated-out", "isolated-in"
	setPeers, setNamed, setOwn     = "peers", "named", "own"
	priorityEgress                 = -10
	priorityIngress                = -9
	idLen                          = 16
	firstRegister                  = 8 // of the 32-bit registers; 1 to 4 are the same, 128 bits each
	offsetDestinationPort, lenPort = 2, 2
)

// family translates the tables of one address family.
type family struct {
	nf           nftables.TableFamily
	addr         nftables.SetDatatype
	addrLen      uint32
	saddr, daddr uint32 // offsets in the header
}

var (
	v4 = &family{nftables.TableFamilyIPv4, nftables.TypeIPAddr, 4, 12, 16}
	v6 = &family{nftables.TableFamilyIPv6, nftables.TypeIP6Addr, 16, 8, 24}
)

func (f *family) config(name string) nft.Config {
	id := nftables.TypeIP6Addr // the type with 128 bits
	return nft.Config{Name: name, Family: f.nf, Version: "1", Sets: []nft.Set{
		{Name: mapOut, Key: f.addr, Data: nftables.TypeVerdict},
		{Name: mapIn, Key: f.addr, Data: nftables.TypeVerdict},
		{Name: setPeers, Key: nftables.MustConcatSetType(id, f.addr), Concat: true},
		{Name: setNamed, Key: nftables.MustConcatSetType(id, f.addr, nftables.TypeInetService), Concat: true},
		{Name: setOwn, Key: nftables.MustConcatSetType(f.addr, f.addr), Concat: true},
	}}
}

// id is the key of a set of the plan in a set of the kernel that has many of them.
func id(set string) string {
	_, text, _ := strings.Cut(set, "-")
	key, err := hex.DecodeString(text)
	if err != nil || len(key) != idLen {
		panic(fmt.Sprintf("policy: %q is not the name of a set", set))
	}
	return string(key)
}

// content is the whole table.
func (f *family) content(t *policies.Family) nft.Content {
	c := nft.Content{Chains: f.baseChains()}
	for _, name := range slices.Sorted(maps.Keys(t.Sets)) {
		if set, ok := f.set(name, t.Sets[name]); ok {
			c.Sets = append(c.Sets, set)
		}
	}
	sets := kinds(t)
	for _, name := range inOrder(t.Chains) {
		c.Chains = append(c.Chains, f.chain(name, t.Chains[name], sets))
	}
	c.Elements = func(yield func(nft.Element) bool) {
		for name, s := range t.Sets {
			for e := range f.elements(name, s.Kind, maps.Keys(s.Elements)) {
				if !yield(e) {
					return
				}
			}
		}
		for d := range t.Isolated {
			for a, chain := range t.Isolated[d] {
				if !yield(place(policies.Direction(d), a, chain)) {
					return
				}
			}
		}
	}
	return c
}

// change translates a change; kinds has the sets that are in the table.
func (f *family) change(c *policies.FamilyChange, kinds map[string]policies.Kind) nft.Change {
	var out nft.Change
	for name, s := range c.AddSets {
		kinds[name] = s.Kind
		if set, ok := f.set(name, s); ok {
			out.AddSets = append(out.AddSets, set)
		}
		out.AddElement = slices.AppendSeq(out.AddElement, f.elements(name, s.Kind, maps.Keys(s.Elements)))
	}
	for name, list := range c.AddElements {
		out.AddElement = slices.AppendSeq(out.AddElement, f.elements(name, kinds[name], slices.Values(list)))
	}
	for _, name := range inOrder(c.SetChains) {
		out.SetChains = append(out.SetChains, f.chain(name, c.SetChains[name], kinds))
	}
	for d := range c.Isolate {
		for _, a := range c.Release[d] {
			out.DelElement = append(out.DelElement, place(policies.Direction(d), a, ""))
		}
		for a, chain := range c.Isolate[d] {
			out.AddElement = append(out.AddElement, place(policies.Direction(d), a, chain))
		}
	}
	for name, list := range c.DelElements {
		out.DelElement = slices.AppendSeq(out.DelElement, f.elements(name, kinds[name], slices.Values(list)))
	}
	out.DelChains = c.DelChains
	for name, s := range c.DelSets {
		delete(kinds, name)
		if _, ok := f.set(name, s); ok {
			out.DelSets = append(out.DelSets, name)
		} else {
			out.DelElement = slices.AppendSeq(out.DelElement, f.elements(name, s.Kind, maps.Keys(s.Elements)))
		}
	}
	return out
}

// inOrder sorts the names of chains: a chain comes after those that it jumps to.
func inOrder(chains map[string]*policies.Chain) []string {
	depths := map[string]int{}
	var depth func(name string) int
	depth = func(name string) int {
		n, known := depths[name]
		if c := chains[name]; c != nil && !known {
			for _, r := range c.Rules {
				if r.Action == policies.Jump {
					n = max(n, 1+depth(r.Target))
				}
			}
			depths[name] = n
		}
		return n
	}
	return slices.SortedFunc(maps.Keys(chains), func(a, b string) int {
		return cmp.Or(depth(a)-depth(b), strings.Compare(a, b))
	})
}

// kinds are the kinds of the sets of a table.
func kinds(t *policies.Family) map[string]policies.Kind {
	out := make(map[string]policies.Kind, len(t.Sets))
	for name, s := range t.Sets {
		out[name] = s.Kind
	}
	return out
}

// set is the kernel's set for one of ranges; sets of other kinds are parts of one set.
func (f *family) set(name string, s *policies.Set) (nft.Set, bool) {
	switch s.Kind {
	case policies.AddressRanges:
		return nft.Set{Name: name, Key: f.addr, Interval: true}, true
	case policies.PortRanges:
		return nft.Set{Name: name, Key: nftables.TypeInetService, Interval: true}, true
	default:
		return nft.Set{}, false
	}
}

// elements are the kernel's elements for those of a set of the plan.
func (f *family) elements(set string, kind policies.Kind, list iter.Seq[policies.Element]) iter.Seq[nft.Element] {
	return func(yield func(nft.Element) bool) {
		for e := range list {
			var out nft.Element
			addr := string(e.Addr.AsSlice())
			switch kind {
			case policies.Addresses:
				out = nft.Element{Set: setPeers, Key: id(set) + addr}
			case policies.AddressPorts:
				out = nft.Element{Set: setNamed, Key: id(set) + addr + port(e.Port) + "\x00\x00"}
			case policies.Own:
				out = nft.Element{Set: setOwn, Key: addr + addr}
			case policies.AddressRanges:
				out = nft.Element{Set: set, Key: addr}
				if behind := e.To.Next(); behind.IsValid() {
					out.End = string(behind.AsSlice())
				}
			case policies.PortRanges:
				out = nft.Element{Set: set, Key: port(e.Port)}
				if e.EndPort < 65535 {
					out.End = port(e.EndPort + 1)
				}
			}
			if !yield(out) {
				return
			}
		}
	}
}

func port(p uint16) string { return string(binary.BigEndian.AppendUint16(nil, p)) }

// place sends packets of an isolated address to a chain.
func place(d policies.Direction, a netip.Addr, chain string) nft.Element {
	e := nft.Element{Set: mapIn, Key: string(a.AsSlice())}
	if d == policies.Egress {
		e.Set = mapOut
	}
	if chain != "" {
		e.Verdict = &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}
	}
	return e
}

func (f *family) baseChains() []nft.Chain {
	const replies = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	base := func(name string, at nftables.ChainPriority, offset uint32, isolated string) nft.Chain {
		return nft.Chain{Name: name, Base: &nft.Base{Type: nftables.ChainTypeFilter, Hook: nftables.ChainHookForward,
			Priority: at}, Rules: [][]expr.Any{
			{&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
				&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
					Mask: binaryutil.NativeEndian.PutUint32(replies), Xor: make([]byte, 4)},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
				&expr.Verdict{Kind: expr.VerdictAccept}},
			{f.load(offset, 1), &expr.Lookup{SourceRegister: 1, SetName: isolated, IsDestRegSet: true}},
		}}
	}
	return []nft.Chain{base(chainEgress, priorityEgress, f.saddr, mapOut),
		base(chainIngress, priorityIngress, f.daddr, mapIn)}
}

func (f *family) load(offset, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.addrLen}
}

func loadPort(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offsetDestinationPort,
		Len: lenPort}
}

// chain translates a chain; kinds has the sets of its peers.
func (f *family) chain(name string, c *policies.Chain, kinds map[string]policies.Kind) nft.Chain {
	out := nft.Chain{Name: name}
	for _, r := range c.Rules {
		out.Rules = append(out.Rules, f.rule(c.Direction, r, kinds))
		out.Comments = append(out.Comments, r.Policy)
	}
	return out
}

func (f *family) rule(d policies.Direction, r policies.Rule, kinds map[string]policies.Kind) []expr.Any {
	var list []expr.Any
	match := func(e ...expr.Any) { list = append(list, e...) }
	peer := f.saddr
	if d == policies.Egress {
		peer = f.daddr
	}
	behindID, words := uint32(firstRegister+idLen/4), f.addrLen/4
	if r.Own {
		match(f.load(f.saddr, firstRegister), f.load(f.daddr, firstRegister+words),
			&expr.Lookup{SourceRegister: firstRegister, SetName: setOwn})
	}
	if r.Protocol != 0 {
		match(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{r.Protocol}})
	}
	switch {
	case r.From != 0 && r.From == r.To:
		match(loadPort(1), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(port(r.From))})
	case r.To != 0:
		match(loadPort(1), &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte(port(r.From)),
			ToData: []byte(port(r.To))})
	}
	if r.Ports != "" {
		match(loadPort(1), &expr.Lookup{SourceRegister: 1, SetName: r.Ports})
	}
	if r.NamedPort != "" {
		match(&expr.Immediate{Register: firstRegister, Data: []byte(id(r.NamedPort))}, f.load(f.daddr, behindID),
			loadPort(behindID+words), &expr.Lookup{SourceRegister: firstRegister, SetName: setNamed})
	}
	switch {
	case r.Peer == "":
	case kinds[r.Peer] == policies.AddressRanges:
		match(f.load(peer, 1), &expr.Lookup{SourceRegister: 1, SetName: r.Peer})
	default:
		match(&expr.Immediate{Register: firstRegister, Data: []byte(id(r.Peer))}, f.load(peer, behindID),
			&expr.Lookup{SourceRegister: firstRegister, SetName: setPeers})
	}
	switch r.Action {
	case policies.Accept:
		match(&expr.Verdict{Kind: expr.VerdictAccept})
	case policies.Drop:
		match(&expr.Verdict{Kind: expr.VerdictDrop})
	case policies.Jump:
		match(&expr.Verdict{Kind: expr.VerdictJump, Chain: r.Target})
	}
	return list
}

// tables are the families in which there may be a table.
var tables = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}

// Remove deletes the tables; missing ones are not an error.
func Remove(name string) error { return nft.Remove(name, tables...) }
