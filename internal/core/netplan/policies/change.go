package policies

import (
	"maps"
	"net/netip"
	"slices"
)

// Change is the difference between two tables. Applied in the order of FamilyChange's fields,
// nothing is removed while something still refers to it; the change is applied in one transaction,
// so that no packet is checked against an intermediate state.
type Change struct {
	V4, V6 FamilyChange
}

// FamilyChange is the change of one family.
type FamilyChange struct {
	AddSets     map[string]*Set // with all their elements
	AddElements map[string][]Element
	SetChains   map[string]*Chain        // new chains, and chains whose rules have changed
	Release     [2][]netip.Addr          // addresses that leave their chain (Isolate may give them another)
	Isolate     [2]map[netip.Addr]string // addresses that get a chain
	DelElements map[string][]Element
	DelChains   []string
	DelSets     map[string]*Set // with their former elements
}

// Empty reports whether nothing changes.
func (c *Change) Empty() bool { return c.V4.Empty() && c.V6.Empty() }

// Empty reports whether nothing changes.
func (c *FamilyChange) Empty() bool {
	return len(c.AddSets)+len(c.AddElements)+len(c.SetChains)+len(c.Isolate[0])+len(c.Isolate[1])+
		len(c.Release[0])+len(c.Release[1])+len(c.DelElements)+len(c.DelChains)+len(c.DelSets) == 0
}

// Size is the number of sets, elements, chains, and rules that the change writes or removes.
func (c *Change) Size() int { return c.V4.size() + c.V6.size() }

func (c *FamilyChange) size() int {
	n := len(c.DelChains)
	for _, list := range []map[string]*Set{c.AddSets, c.DelSets} {
		for _, s := range list { // any order: one entry does not depend on another
			n += 1 + len(s.Elements)
		}
	}
	for _, list := range []map[string][]Element{c.AddElements, c.DelElements} {
		for _, e := range list { // any order: one entry does not depend on another
			n += len(e)
		}
	}
	for _, chain := range c.SetChains { // any order: one entry does not depend on another
		n += 1 + len(chain.Rules)
	}
	for d := range c.Isolate {
		n += len(c.Isolate[d]) + len(c.Release[d])
	}
	return n
}

// Apply changes a table. It panics if the change does not fit; the kernel would refuse it.
func (t *Table) Apply(c Change) {
	t.V4.apply(&c.V4)
	t.V6.apply(&c.V6)
}

func (f *Family) apply(c *FamilyChange) {
	must := func(ok bool, what, name string) {
		if !ok {
			panic("policies: the change does not fit: " + what + " " + name)
		}
	}
	for name, s := range c.AddSets { // any order: one entry does not depend on another
		must(f.Sets[name] == nil, "add set", name)
		f.Sets[name] = s.clone()
	}
	for name, list := range c.AddElements { // any order: one entry does not depend on another
		for _, e := range list {
			must(f.Sets[name] != nil && !f.Sets[name].has(e), "add element of", name)
			f.Sets[name].Elements[e] = struct{}{}
		}
	}
	for name, chain := range c.SetChains { // any order: one entry does not depend on another
		f.Chains[name] = chain.clone()
	}
	for d := range c.Isolate {
		for _, a := range c.Release[d] {
			must(f.Isolated[d][a] != "", "release", a.String())
			delete(f.Isolated[d], a)
		}
		for a, chain := range c.Isolate[d] { // any order: one entry does not depend on another
			must(f.Chains[chain] != nil && f.Isolated[d][a] == "", "isolate by chain", chain)
			f.Isolated[d][a] = chain
		}
	}
	for name, list := range c.DelElements { // any order: one entry does not depend on another
		for _, e := range list {
			must(f.Sets[name] != nil && f.Sets[name].has(e), "delete element of", name)
			delete(f.Sets[name].Elements, e)
		}
	}
	for _, name := range c.DelChains {
		must(f.Chains[name] != nil, "delete chain", name)
		delete(f.Chains, name)
	}
	for name, s := range c.DelSets { // any order: one entry does not depend on another
		must(f.Sets[name] != nil && maps.Equal(f.Sets[name].Elements, s.Elements), "delete set", name)
		delete(f.Sets, name)
	}
}

// Diff returns the change from one table to another. It compares whole tables; Plan.Take returns
// recorded changes.
func Diff(from, to *Table) Change {
	return Change{V4: diff(&from.V4, &to.V4), V6: diff(&from.V6, &to.V6)}
}

func diff(from, to *Family) FamilyChange {
	var c FamilyChange
	for name, s := range to.Sets { // any order: one entry does not depend on another
		if had := from.Sets[name]; had != nil {
			c.elements(name, had.Elements, s.Elements)
		} else {
			put(&c.AddSets, name, s.clone())
		}
	}
	for name, s := range from.Sets { // any order: one entry does not depend on another
		if to.Sets[name] == nil {
			put(&c.DelSets, name, s.clone())
		}
	}
	for name, chain := range to.Chains { // any order: one entry does not depend on another
		if had := from.Chains[name]; had == nil || !had.equal(chain) {
			put(&c.SetChains, name, chain.clone())
		}
	}
	for name := range from.Chains { // any order: one entry does not depend on another
		if to.Chains[name] == nil {
			c.DelChains = append(c.DelChains, name)
		}
	}
	for d := range to.Isolated {
		for a, chain := range to.Isolated[d] { // any order: one entry does not depend on another
			if from.Isolated[d][a] != chain {
				put(&c.Isolate[d], a, chain)
			}
		}
		for a, chain := range from.Isolated[d] { // any order: one entry does not depend on another
			if to.Isolated[d][a] != chain {
				c.Release[d] = append(c.Release[d], a)
			}
		}
	}
	c.sort()
	return c
}

func (c *FamilyChange) elements(name string, had, have map[Element]struct{}) {
	for e := range have { // any order: one entry does not depend on another
		if _, ok := had[e]; !ok {
			put(&c.AddElements, name, append(c.AddElements[name], e))
		}
	}
	for e := range had { // any order: one entry does not depend on another
		if _, ok := have[e]; !ok {
			put(&c.DelElements, name, append(c.DelElements[name], e))
		}
	}
}

// sort orders the lists, so that equal changes are equal values.
func (c *FamilyChange) sort() {
	for _, m := range []map[string][]Element{c.AddElements, c.DelElements} {
		for _, list := range m { // any order: one entry does not depend on another
			SortElements(list)
		}
	}
	for d := range c.Release {
		slices.SortFunc(c.Release[d], netip.Addr.Compare)
	}
	slices.Sort(c.DelChains)
}

// SortElements sorts by address and port.
func SortElements(list []Element) {
	slices.SortFunc(list, func(a, b Element) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c
		}
		return int(a.Port) - int(b.Port)
	})
}

func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// journal records the parts of a family as they were before their first change.
type journal struct {
	sets     map[string]*setBefore
	chains   map[string]*Chain // nil: there was none
	isolated [2]map[netip.Addr]string
}

// setBefore is the former state of a set: the whole set, if it was created or removed since;
// otherwise the touched elements, and whether they existed.
type setBefore struct {
	existed bool
	whole   *Set // the former state of a set that was removed since
	touched map[Element]bool
}

func (j *journal) set(name string, now *Set) *setBefore {
	b := j.sets[name]
	if b == nil {
		b = &setBefore{existed: now != nil}
		put(&j.sets, name, b)
	}
	return b
}

// writer changes a family and records the change.
type writer struct {
	Family
	j journal
}

func (w *writer) addSet(name string, s *Set) {
	if b := w.j.set(name, nil); b.whole != nil { // removed and created again: compare the elements
		b.touched = map[Element]bool{}
		for e := range b.whole.Elements { // any order: one entry does not depend on another
			b.touched[e] = true
		}
		for e := range s.Elements { // any order: one entry does not depend on another
			if !b.touched[e] {
				b.touched[e] = false
			}
		}
	}
	w.Sets[name] = s
}

func (w *writer) delSet(name string) {
	s := w.Sets[name]
	b := w.j.set(name, s)
	if b.existed && b.whole == nil {
		was := s.clone()
		for e, there := range b.touched { // any order: one entry does not depend on another
			if there {
				was.Elements[e] = struct{}{}
			} else {
				delete(was.Elements, e)
			}
		}
		b.whole = was
	}
	delete(w.Sets, name)
}

func (w *writer) element(name string, e Element, there bool) {
	s := w.Sets[name]
	had := s.has(e)
	if had == there {
		return
	}
	if b := w.j.set(name, s); b.existed {
		if _, seen := b.touched[e]; !seen {
			put(&b.touched, e, had)
		}
	}
	if there {
		s.Elements[e] = struct{}{}
	} else {
		delete(s.Elements, e)
	}
}

// chain replaces a chain; nil removes it.
func (w *writer) chain(name string, c *Chain) {
	if _, seen := w.j.chains[name]; !seen {
		put(&w.j.chains, name, w.Chains[name])
	}
	if c == nil {
		delete(w.Chains, name)
	} else {
		w.Chains[name] = c
	}
}

// isolate sends an address to a chain; "" ends its isolation.
func (w *writer) isolate(d Direction, a netip.Addr, chain string) {
	if _, seen := w.j.isolated[d][a]; !seen {
		put(&w.j.isolated[d], a, w.Isolated[d][a])
	}
	if chain == "" {
		delete(w.Isolated[d], a)
	} else {
		w.Isolated[d][a] = chain
	}
}

// take returns the changes since the last call.
func (w *writer) take() FamilyChange {
	var c FamilyChange
	for name, b := range w.j.sets { // any order: one entry does not depend on another
		switch s := w.Sets[name]; {
		case s == nil && b.existed:
			put(&c.DelSets, name, b.whole)
		case s != nil && !b.existed:
			put(&c.AddSets, name, s.clone())
		case s != nil:
			for e, had := range b.touched { // any order: one entry does not depend on another
				if has := s.has(e); has && !had {
					put(&c.AddElements, name, append(c.AddElements[name], e))
				} else if had && !has {
					put(&c.DelElements, name, append(c.DelElements[name], e))
				}
			}
		}
	}
	for name, had := range w.j.chains { // any order: one entry does not depend on another
		switch chain := w.Chains[name]; {
		case chain == nil && had != nil:
			c.DelChains = append(c.DelChains, name)
		case chain != nil && (had == nil || !had.equal(chain)):
			put(&c.SetChains, name, chain.clone())
		}
	}
	for d := range w.j.isolated {
		for a, had := range w.j.isolated[d] { // any order: one entry does not depend on another
			chain := w.Isolated[d][a]
			if chain == had {
				continue
			}
			if had != "" {
				c.Release[d] = append(c.Release[d], a)
			}
			if chain != "" {
				put(&c.Isolate[d], a, chain)
			}
		}
	}
	w.j = journal{}
	c.sort()
	return c
}
