package nft

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Sync replaces any current content of the table by the given one.
func (t *Table) Sync(c Content) error {
	t.dropStale()
	for name := range t.extra {
		t.forget(name)
	}
	for _, s := range c.Sets { // to read their elements
		if err := t.know(s); err != nil {
			return err
		}
		t.extra[s.Name] = true
	}
	var err error
	for range 5 {
		var now *present
		if now, err = t.read(); err != nil {
			if again(err) {
				continue
			}
			return fmt.Errorf("read nftables table %s: %w", t.cfg.Name, err)
		}
		if err = t.replace(now, c); err == nil {
			return nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !again(err) {
			return err
		} // others have changed the table meanwhile
	}
	return err
}

func again(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS)
}

// present is the table's content in the kernel.
type present struct {
	complete bool // the permanent sets are correct
	sets     map[string]bool
	chains   map[string]*nftables.Chain
	elements map[string]map[string]string // set → key → data
}

func (t *Table) read() (*present, error) {
	now := &present{chains: map[string]*nftables.Chain{}, sets: map[string]bool{},
		elements: map[string]map[string]string{}}
	chains, err := t.conn.ListChainsOfTableFamily(t.cfg.Family)
	if err != nil {
		return nil, t.abandon(err)
	}
	for _, c := range chains {
		if c.Table.Name == t.cfg.Name && c.Table.Family == t.cfg.Family {
			now.chains[c.Name] = c
		}
	}
	if now.chains[t.layout] == nil {
		return now, nil
	}
	have, err := t.conn.GetSets(t.table)
	if err != nil {
		return nil, t.abandon(err)
	}
	for _, s := range have {
		now.sets[s.Name] = !s.Anonymous
	}
	for _, s := range t.cfg.Sets {
		if !now.sets[s.Name] {
			return now, nil
		}
	}
	now.complete = true
	for name, s := range t.sets {
		if s.Dynamic || s.Interval || !now.sets[name] {
			continue
		}
		list, err := t.conn.GetSetElements(s)
		if err != nil {
			return nil, t.abandon(err)
		}
		m := make(map[string]string, len(list))
		for _, e := range list {
			m[string(e.Key)] = value(e)
		}
		now.elements[name] = m
	}
	return now, nil
}

// value is an element's data in a comparable form.
func value(e nftables.SetElement) string {
	if e.VerdictData != nil {
		return fmt.Sprintf("verdict %d %s", e.VerdictData.Kind, strings.TrimRight(e.VerdictData.Chain, "\x00"))
	}
	return string(e.Val)
}

// replace writes the difference between what the kernel has and the content.
func (t *Table) replace(now *present, c Content) error {
	size := 64 << 10
	for _, step := range []func(*present, Content) (int, error){
		t.replaceTable, t.replaceSets, t.replaceChains, t.replaceElements,
	} {
		n, err := step(now, c)
		if err != nil {
			return t.abandon(err)
		}
		size += n
	}
	return t.flush("install", size+t.removeRest(now))
}

// replaceTable makes a new table if the kernel's lacks a permanent set.
func (t *Table) replaceTable(now *present, _ Content) (size int, err error) {
	if now.complete {
		for _, s := range t.cfg.Sets {
			if s.Interval {
				t.conn.FlushSet(t.sets[s.Name])
			}
		}
		return 0, nil
	}
	t.conn.AddTable(t.table)
	t.conn.DelTable(t.table)
	t.conn.AddTable(t.table)
	clear(now.chains)
	clear(now.elements)
	clear(now.sets)
	clear(t.stale)
	for _, s := range t.cfg.Sets {
		if err := t.conn.AddSet(t.sets[s.Name], nil); err != nil {
			return 0, fmt.Errorf("add set %s: %w", s.Name, err)
		}
	}
	return 0, nil
}

// replaceSets adds the missing sets that are not permanent.
func (t *Table) replaceSets(now *present, c Content) (size int, err error) {
	for _, s := range c.Sets {
		if !now.sets[s.Name] {
			n, err := t.addSets([]Set{s})
			if err != nil {
				return 0, err
			}
			size += n
		} else if s.Interval {
			t.conn.FlushSet(t.sets[s.Name])
		}
	}
	return size, nil
}

// replaceChains writes the rules of all chains. The chains that remain in now are not wanted.
func (t *Table) replaceChains(now *present, c Content) (size int, err error) {
	for _, chain := range append([]Chain{{Name: t.layout}}, c.Chains...) {
		have := now.chains[chain.Name]
		moved := have != nil && !sameHook(have, chain.Base)
		if err := t.setChain(chain, moved); err != nil {
			return 0, err
		}
		size += chainSize(chain)
		delete(now.chains, chain.Name)
	}
	return size, nil
}

// replaceElements deletes and adds the elements that differ.
func (t *Table) replaceElements(now *present, c Content) (size int, err error) {
	var add, del []Element
	for e := range c.Elements {
		have, ok := now.elements[e.Set][e.Key]
		delete(now.elements[e.Set], e.Key)
		if ok && have == value(t.element(e)) {
			continue
		}
		if ok {
			del = append(del, Element{Set: e.Set, Key: e.Key})
		}
		add = append(add, e)
	}
	for name, left := range now.elements {
		for key := range left {
			del = append(del, Element{Set: name, Key: key})
		}
	}
	deleted, err := t.elements(del, t.conn.SetDeleteElements)
	if err != nil {
		return 0, err
	}
	added, err := t.elements(add, t.conn.SetAddElements)
	return deleted + added, err
}

// removeRest removes the chains and sets that the content does not have.
func (t *Table) removeRest(now *present) (size int) {
	var extra []string
	for name := range now.chains {
		if _, known := t.stale[name]; !known {
			extra = append(extra, name)
		}
	}
	t.emptyChains(extra)
	size = 512 * len(extra)
	for name, named := range now.sets {
		if named && t.sets[name] == nil {
			t.conn.DelSet(&nftables.Set{Table: t.table, Name: name})
			size += 512
		}
	}
	return size
}

func sameHook(have *nftables.Chain, want *Base) bool {
	if want == nil || have.Hooknum == nil {
		return want == nil && have.Hooknum == nil
	}
	return have.Type == want.Type && *have.Hooknum == *want.Hook && have.Priority != nil &&
		*have.Priority == want.Priority
}
