package nft

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"
)

// maxList bounds the bytes of elements in one message: the length of an attribute has 16 bits.
const maxList = 60 << 10

// elements adds messages for elements, grouped by set, in messages of bounded size.
func (t *Table) elements(list []Element, add func(*nftables.Set, []nftables.SetElement) error) (size int, err error) {
	bySet := map[string][]Element{}
	for _, e := range list {
		if t.sets[e.Set] == nil {
			return 0, fmt.Errorf("nftables table %s has no set %q", t.cfg.Name, e.Set)
		}
		bySet[e.Set] = append(bySet[e.Set], e)
	}
	for _, name := range slices.Sorted(maps.Keys(bySet)) {
		s := t.spec[name]
		part, bytes := []nftables.SetElement(nil), 0
		send := func() error {
			if len(part) == 0 {
				return nil
			}
			size += bytes + 256
			err := add(t.sets[s.Name], part)
			part, bytes = nil, 0
			return err
		}
		for _, e := range bySet[s.Name] {
			n := elementSize(e)
			if bytes+n > maxList {
				if err := send(); err != nil {
					return size, err
				}
			}
			part, bytes = append(part, t.element(e)), bytes+n
			if s.Interval && !s.Concat && e.End != "" {
				part = append(part, nftables.SetElement{Key: []byte(e.End), IntervalEnd: true})
			}
		}
		if err := send(); err != nil {
			return size, err
		}
	}
	return size, nil
}

// elementSize bounds the bytes of an element in a message.
func elementSize(e Element) int {
	n := 64 + len(e.Key) + 2*len(e.End) + len(e.Data)
	if e.End != "" {
		n += 64
	}
	if e.Verdict != nil {
		n += 48 + len(e.Verdict.Chain)
	}
	return n
}

func (t *Table) element(e Element) nftables.SetElement {
	out := nftables.SetElement{Key: []byte(e.Key), VerdictData: e.Verdict}
	if e.Data != "" {
		out.Val = []byte(e.Data)
	}
	if t.spec[e.Set].Concat && e.End != "" {
		out.KeyEnd = []byte(e.End)
	}
	return out
}
