package services

import (
	"fmt"
	"hash/fnv"
	"net/netip"
)

// ids assigns numbers to keys: a hash, or the next number that is free. 0 is not a number.
type ids[K comparable] struct {
	byKey map[K]uint32
	taken map[uint32]bool
}

// of returns the number of k; text identifies k.
func (s *ids[K]) of(k K, text func() string) uint32 {
	if n, ok := s.byKey[k]; ok {
		return n
	}
	if s.byKey == nil {
		s.byKey, s.taken = map[K]uint32{}, map[uint32]bool{}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(text()))
	n := h.Sum32()
	for n == 0 || s.taken[n] {
		n++
	}
	s.byKey[k], s.taken[n] = n, true
	return n
}

func (s *ids[K]) free(k K) {
	delete(s.taken, s.byKey[k])
	delete(s.byKey, k)
}

// memberOf is an endpoint of a list with affinity.
type memberOf struct {
	list List
	at   netip.AddrPort
}

func (l List) text() string { return fmt.Sprint(l.Port, l.Local) }

func (m memberOf) text() string { return fmt.Sprint(m.list.text(), m.at) }
