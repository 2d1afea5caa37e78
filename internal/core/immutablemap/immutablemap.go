// Package immutablemap implements a persistent map: With and Without return a changed copy that shares nearly all
// memory with the original, and the original stays as it is. A lookup costs about as much as in a Go map.
package immutablemap

import (
	"iter"
	"maps"
)

// Map is a persistent map. Make it with New: the zero value is an empty map that can only be read.
type Map[K comparable, V any] struct {
	hash   func(K) uint32
	shards []map[K]V // a power of two; a copy shares those that did not change
	n      int
}

// perShard is the number of entries per shard at which the number of shards is doubled. A change copies one
// shard.
const perShard = 64

// New returns an empty map. hash distributes the keys over the shards; a poor distribution makes changes
// slower, but not lookups.
func New[K comparable, V any](hash func(K) uint32) Map[K, V] { return Map[K, V]{hash: hash} }

// Len is the number of entries.
func (m *Map[K, V]) Len() int { return m.n }

// Get returns the value of a key.
func (m *Map[K, V]) Get(key K) (V, bool) {
	switch len(m.shards) {
	case 0:
		var none V
		return none, false
	case 1:
		v, ok := m.shards[0][key]
		return v, ok
	}
	v, ok := m.shards[m.at(key)][key]
	return v, ok
}

func (m *Map[K, V]) at(key K) uint32 {
	if len(m.shards) == 1 {
		return 0
	}
	return m.hash(key) & uint32(len(m.shards)-1)
}

// Set changes the map in place. Use it only while the map is being built, before other goroutines or copies refer to
// it.
func (m *Map[K, V]) Set(key K, v V) {
	if m.n >= perShard*len(m.shards) {
		m.grow(max(1, 2*len(m.shards)))
	}
	shard := m.shards[m.at(key)]
	if _, known := shard[key]; !known {
		m.n++
	}
	shard[key] = v
}

func (m *Map[K, V]) grow(to int) {
	old := m.shards
	m.shards = make([]map[K]V, to)
	for i := range m.shards {
		m.shards[i] = map[K]V{}
	}
	for _, shard := range old {
		for k, v := range shard { // any order: into maps
			m.shards[m.at(k)][k] = v
		}
	}
}

// With returns the map with a value for a key.
func (m Map[K, V]) With(key K, v V) Map[K, V] {
	if m.n >= perShard*len(m.shards) {
		m.grow(max(1, 2*len(m.shards))) // makes new shards
	} else {
		m.copyShard(m.at(key))
	}
	m.Set(key, v)
	return m
}

// Without returns the map without a key.
func (m Map[K, V]) Without(key K) Map[K, V] {
	if _, known := m.Get(key); !known {
		return m
	}
	m.n--
	if m.n < perShard*len(m.shards)/8 && len(m.shards) > 1 {
		m.grow(len(m.shards) / 2)
	} else {
		m.copyShard(m.at(key))
	}
	delete(m.shards[m.at(key)], key)
	return m
}

// copyShard copies one shard.
func (m *Map[K, V]) copyShard(at uint32) {
	shards := make([]map[K]V, len(m.shards))
	copy(shards, m.shards)
	shards[at] = maps.Clone(shards[at])
	m.shards = shards
}

// All yields the entries in any order.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, shard := range m.shards {
			for k, v := range shard { // any order: as documented
				if !yield(k, v) {
					return
				}
			}
		}
	}
}

// String is a hash for string keys (FNV-1a).
func String(key string) uint32 {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return h ^ h>>15
}
