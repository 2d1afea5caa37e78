package services

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	core "carob/internal/core/netplan/services"
	"carob/internal/network/nft"
)

// layoutVersion changes when the keys or data of sets get another meaning.
const layoutVersion = "1"

// maxClients bounds how many pairs of client and Service port with affinity are remembered; further
// clients are distributed without it.
const maxClients = 1 << 18

// codec encodes one address family.
type codec struct {
	v6 bool
}

func (c codec) family() nftables.TableFamily {
	if c.v6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

func (c codec) name() string {
	if c.v6 {
		return "IPv6"
	}
	return "IPv4"
}

// Sets in addition to those of package core. A set of core whose keys are addresses and ports is two sets
// here: one for addresses, and one for node ports, whose keys have no address. A target is in two
// maps: its class, which chooses the chain, and its list.
const (
	setPicks       = "picks"        // class → chain that chooses from dispatch
	setInsidePicks = "inside-picks" // class → chain that chooses from inside
	setAffinity    = "affinity"     // list, client → member
	ports          = "-ports"       // ends the names of sets for node ports
	lists          = "-lists"       // ends the names of maps that have the list of a target
)

// sets are the sets of the table. Numbers have the byte order of the host, as the kernel computes with
// them; the rest is as in packets. No rule uses the result of a lookup as the key of another one (chains.go).
func (c codec) sets() []nft.Set {
	addr := nftables.TypeIPAddr
	if c.v6 {
		addr = nftables.TypeIP6Addr
	}
	word, proto, port := nftables.TypeMark, nftables.TypeInetProto, nftables.TypeInetService
	types := nftables.MustConcatSetType
	endpoint := types(addr, port)
	set := func(name string, key nftables.SetDatatype, data ...nftables.SetDatatype) nft.Set {
		out := nft.Set{Name: name, Key: key, Concat: key.Name != addr.Name && key.Name != word.Name}
		if len(data) > 0 {
			out.Data = data[0]
		}
		return out
	}
	var out []nft.Set
	both := func(name string, data ...nftables.SetDatatype) {
		out = append(out, set(name, types(addr, proto, port), data...), set(name+ports, types(proto, port), data...))
	}
	for _, s := range []core.Set{core.Dispatch, core.Inside} {
		both(s.String(), word)
		both(s.String()+lists, word)
	}
	for _, s := range []core.Set{core.Masquerade, core.Reject, core.Drop} {
		both(s.String())
	}
	sources := set(core.Sources.String(), types(addr, proto, port, addr))
	sources.Interval = true
	return append(out,
		set(core.Endpoints.String(), types(word, word), endpoint),
		set(core.Slots.String(), types(word, word), word),
		set(core.Members.String(), word, endpoint),
		set(core.ClusterIPs.String(), addr), set(core.Hairpin.String(), types(addr, addr)),
		set(core.NodeIPs.String(), addr),
		set(core.Guarded.String(), types(addr, proto, port)), sources,
		set(setPicks, word, nftables.TypeVerdict), set(setInsidePicks, word, nftables.TypeVerdict),
		nft.Set{Name: setAffinity, Key: types(word, addr), Data: word, Concat: true, Dynamic: true, Size: maxClients})
}

func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func portWord(p uint16) []byte { return []byte{byte(p >> 8), byte(p), 0, 0} }

// vipKey is the key of an address and port, and where it is.
func vipKey(set string, p core.Port) (string, []byte) {
	tail := append([]byte{byte(p.Proto), 0, 0, 0}, portWord(p.Port)...)
	if p.Addr.IsUnspecified() {
		return set + ports, tail
	}
	return set, append(p.Addr.AsSlice(), tail...)
}

func endpointData(at netip.AddrPort) []byte {
	return append(at.Addr().AsSlice(), portWord(at.Port())...)
}

// element encodes one element, which is one or two of the kernel's.
func (c codec) element(to []nft.Element, e core.Element) []nft.Element {
	set := e.Set.String()
	switch e.Set {
	case core.Dispatch, core.Inside:
		class, key := vipKey(set, e.Key.Port)
		list, _ := vipKey(set+lists, e.Key.Port)
		return append(to, nft.Element{Set: class, Key: string(key), Data: string(number(e.Target.Number()))},
			nft.Element{Set: list, Key: string(key), Data: string(number(e.Target.List))})
	case core.Endpoints:
		return append(to, nft.Element{Set: set, Key: string(append(number(e.Key.ID), number(e.Key.Index)...)),
			Data: string(endpointData(e.To))})
	case core.Slots:
		return append(to, nft.Element{Set: set, Key: string(append(number(e.Key.ID), number(e.Key.Index)...)),
			Data: string(number(e.Member))})
	case core.Members:
		return append(to, nft.Element{Set: set, Key: string(number(e.Key.ID)), Data: string(endpointData(e.To))})
	case core.Hairpin:
		return append(to, nft.Element{Set: set, Key: string(append(e.Key.Addr.AsSlice(), e.Key.Addr.AsSlice()...))})
	case core.ClusterIPs, core.NodeIPs:
		return append(to, nft.Element{Set: set, Key: string(e.Key.Addr.AsSlice())})
	case core.Sources:
		_, key := vipKey(set, e.Key.Port)
		first, last := e.Key.Source.Addr().AsSlice(), e.Key.Source.Addr().AsSlice()
		for i := e.Key.Source.Bits(); i < 8*len(last); i++ {
			last[i/8] |= 0x80 >> (i % 8)
		}
		return append(to, nft.Element{Set: set, Key: string(key) + string(first), End: string(key) + string(last)})
	default: // keyed by address and port
	}
	set, key := vipKey(set, e.Key.Port)
	return append(to, nft.Element{Set: set, Key: string(key)})
}

// picks are the elements that lead to the chains of a class.
func picks(c core.Class) []nft.Element {
	to := func(set, prefix string) nft.Element {
		return nft.Element{Set: set, Key: string(number(c.Number())),
			Verdict: &expr.Verdict{Kind: expr.VerdictJump, Chain: chainOf(prefix, c)}}
	}
	return []nft.Element{to(setPicks, "pick"), to(setInsidePicks, "inside")}
}

func chainOf(prefix string, c core.Class) string {
	return fmt.Sprintf("%s-%d-%d", prefix, c.N, c.Timeout)
}

// change encodes the difference between two tables.
func (c codec) change(from core.Change) nft.Change {
	var out nft.Change
	for _, e := range from.Delete {
		out.DelElement = c.element(out.DelElement, e)
	}
	for _, e := range from.Add {
		out.AddElement = c.element(out.AddElement, e)
	}
	for _, class := range from.OldClasses {
		out.DelElement = append(out.DelElement, picks(class)...)
		out.DelChains = append(out.DelChains, chainOf("pick", class), chainOf("inside", class))
	}
	for _, class := range from.NewClasses {
		out.SetChains = append(out.SetChains, c.pickChains(class)...)
		out.AddElement = append(out.AddElement, picks(class)...)
	}
	return out
}

// content encodes the whole table.
func (c codec) content(s *core.State) nft.Content {
	chains := c.chains(s.Node())
	classes := s.Classes()
	for _, class := range classes {
		chains = append(chains, c.pickChains(class)...)
	}
	return nft.Content{Chains: chains, Elements: c.elements(s, classes)}
}

func (c codec) elements(s *core.State, classes []core.Class) iter.Seq[nft.Element] {
	return func(yield func(nft.Element) bool) {
		for _, class := range classes {
			for _, e := range picks(class) {
				if !yield(e) {
					return
				}
			}
		}
		var some []nft.Element
		for e := range s.Elements() {
			some = c.element(some[:0], e)
			for _, one := range some {
				if !yield(one) {
					return
				}
			}
		}
	}
}
