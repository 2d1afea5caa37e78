package services

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// Set names a set or map of the table.
type Set uint8

// The sets; the package comment describes them.
const (
	Dispatch Set = iota
	Inside
	Endpoints
	Slots
	Members
	Masquerade
	Reject
	Drop
	ClusterIPs
	Hairpin
	Guarded
	Sources
	NodeIPs
	Sets // the number of sets
)

func (s Set) String() string {
	return [...]string{"dispatch", "inside", "endpoints", "slots", "members", "masquerades", "rejects", "drops",
		"cluster-ips", "hairpin", "guarded", "sources", "node-ips"}[s]
}

// Key is the key of an element. Which fields it has depends on the set; the others are zero.
type Key struct {
	Port                // those with an address, protocol and port; Addr: ClusterIPs, Hairpin, NodeIPs
	ID     uint32       // Endpoints, Slots: of the list; Members: of the endpoint in its list
	Index  uint32       // Endpoints, Slots
	Source netip.Prefix // Sources
}

// Element is an element of a set. Data depends on the set, too.
type Element struct {
	Set    Set
	Key    Key
	Target Target         // Dispatch, Inside
	To     netip.AddrPort // Endpoints, Members
	Member uint32         // Slots
}

// Change is the difference between two tables. Elements are deleted before others are added: one
// with other data is in both lists.
type Change struct {
	Delete, Add []Element
	// NewClasses and OldClasses lists classes that need, or no longer need, a chain that chooses
	// among N endpoints.
	NewClasses, OldClasses []Class
	// Flows are the addresses and ports of UDP and TCP that changed, with the endpoints that serve now:
	// conntrack entries of flows to others must be deleted (N2.J), of TCP only those that have ended.
	Flows map[Port][]netip.AddrPort
	// Problems are reasons why an address or port of a changed Service is not served.
	Problems []Problem

	// Left lists pods for which State.UseOf may no longer return In.
	Left []types.UID

	forget  []memberOf
	touched []List              // whose numbers may be free
	self    map[netip.Addr]bool // changed local endpoints: whether they existed before
}

// GoneEndpoints are the endpoints that the change only deletes. Those that it also adds have another index in their
// list, and get connections as before.
func (c *Change) GoneEndpoints() map[netip.AddrPort]bool {
	gone := map[netip.AddrPort]bool{}
	serves := func(e Element) bool { return e.Set == Endpoints || e.Set == Members }
	for _, e := range c.Delete {
		if serves(e) {
			gone[e.To] = true
		}
	}
	for _, e := range c.Add {
		if serves(e) {
			delete(gone, e.To)
		}
	}
	return gone
}

// Empty reports whether nothing changes in the table.
func (c *Change) Empty() bool {
	return len(c.Delete)+len(c.Add)+len(c.NewClasses)+len(c.OldClasses) == 0
}

// add and remove cancel out for an element that is removed and added unchanged.
func (c *Change) add(e Element)    { c.Add = append(c.Add, e) }
func (c *Change) remove(e Element) { c.Delete = append(c.Delete, e) }

// cancel drops pairs of a deletion and an addition of the same element.
func (c *Change) cancel() {
	if len(c.Delete) == 0 || len(c.Add) == 0 {
		return
	}
	gone := make(map[Element]bool, len(c.Delete))
	for _, e := range c.Delete {
		gone[e] = true
	}
	back := map[Element]bool{}
	kept := c.Add[:0]
	for _, e := range c.Add {
		if gone[e] {
			back[e] = true
		} else {
			kept = append(kept, e)
		}
	}
	c.Add = kept
	if len(back) == 0 {
		return
	}
	left := c.Delete[:0]
	for _, e := range c.Delete {
		if !back[e] {
			left = append(left, e)
		}
	}
	c.Delete = left
}

// Table holds elements as data, like the kernel's sets.
type Table [Sets]map[Key]Element

// NewTable returns an empty table.
func NewTable() *Table {
	t := &Table{}
	for i := range t {
		t[i] = map[Key]Element{}
	}
	return t
}

// Apply applies a change like the kernel: completely, or not at all if an element to delete is
// missing or one to add exists. It reports whether it was applied.
func (t *Table) Apply(c Change) bool {
	gone := map[Set]map[Key]bool{}
	for _, e := range c.Delete {
		if gone[e.Set] == nil {
			gone[e.Set] = map[Key]bool{}
		}
		if have, ok := t[e.Set][e.Key]; !ok || have != e || gone[e.Set][e.Key] {
			return false
		}
		gone[e.Set][e.Key] = true
	}
	come := map[Set]map[Key]bool{}
	for _, e := range c.Add {
		if come[e.Set] == nil {
			come[e.Set] = map[Key]bool{}
		}
		if _, ok := t[e.Set][e.Key]; ok && !gone[e.Set][e.Key] || come[e.Set][e.Key] {
			return false
		}
		come[e.Set][e.Key] = true
	}
	for _, e := range c.Delete {
		delete(t[e.Set], e.Key)
	}
	for _, e := range c.Add {
		t[e.Set][e.Key] = e
	}
	return true
}
