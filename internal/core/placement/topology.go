package placement

import "slices"

// topology numbers the domains that the nodes form by one label.
type topology struct {
	key string
	of  []int32 // by Node.index: the number of its domain; -1 without the label
	n   int32   // how many domains there are
}

// topology returns the domains of a label. They are computed once for a set of nodes and labels. A key that no node
// has is not kept: users may name any number of them.
func (c *Cluster) topology(key string) *topology {
	if t := c.topologies[key]; t != nil {
		return t
	}
	if !c.hasDomains(key) {
		return &topology{key: key, of: c.outside}
	}
	t := &topology{key: key, of: make([]int32, len(c.nodes))}
	numbers := map[string]int32{}
	for i, n := range c.nodes {
		value, ok := n.label(key)
		if !ok {
			t.of[i] = -1
			continue
		}
		number, ok := numbers[value]
		if !ok {
			number = t.n
			numbers[value] = number
			t.n++
		}
		t.of[i] = number
	}
	c.topologies[key] = t
	return t
}

// hasDomains reports whether a node has the label.
func (c *Cluster) hasDomains(key string) bool {
	if c.nodeLabels == nil {
		c.nodeLabels, c.outside = map[string]bool{}, slices.Repeat([]int32{-1}, len(c.nodes))
		for _, n := range c.nodes {
			for key := range n.Object.Labels { // any order: a set
				c.nodeLabels[key] = true
			}
		}
	}
	return c.nodeLabels[key]
}

// counts is a number for each domain of a topology.
type counts struct {
	*topology
	in      []int64
	nonzero int // domains whose number is not 0
}

func newCounts(t *topology) *counts { return &counts{topology: t, in: make([]int64, t.n)} }

// add changes the number of a node's domain, and reports whether the node is in one.
func (k *counts) add(n *Node, by int64) bool {
	d := k.of[n.index]
	if d < 0 {
		return false
	}
	before := k.in[d]
	k.in[d] += by
	switch {
	case before == 0 && by != 0:
		k.nonzero++
	case before != 0 && k.in[d] == 0:
		k.nonzero--
	}
	return true
}

// at returns the number of the domain of the node with this index; 0 where it is in none.
func (k *counts) at(index int) int64 {
	if d := k.of[index]; d >= 0 {
		return k.in[d]
	}
	return 0
}

// keyed is a set of counts, one for each topology key in use. There are few: those that the nodes have.
type keyed []*counts

// add changes the number of a node's domain. Without the label, the node is in none.
func (s *keyed) add(c *Cluster, key string, n *Node, by int64) {
	if _, there := n.label(key); there {
		s.by(c, key).add(n, by)
	}
}

// by returns the counts of a key; it makes them on the first use.
func (s *keyed) by(c *Cluster, key string) *counts {
	for _, k := range *s {
		if k.key == key {
			return k
		}
	}
	k := newCounts(c.topology(key))
	*s = append(*s, k)
	return k
}
