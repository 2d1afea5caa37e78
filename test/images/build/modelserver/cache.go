package main

import (
	"container/list"
	"encoding/binary"
	"hash/fnv"
	"slices"
)

// blockBytes is a block of 64 tokens of four bytes.
const blockBytes = 256

// cache has the blocks of prompts that were used last. It is not safe for several goroutines.
type cache struct {
	most   int
	blocks map[uint64]*list.Element
	used   *list.List // from the one used last
}

func newCache(blocks int) *cache {
	return &cache{most: blocks, blocks: map[uint64]*list.Element{}, used: list.New()}
}

// hit returns how many blocks a prompt begins with are there, and puts all of them in. Prompts with different salts
// share nothing.
func (c *cache) hit(salt, prompt string) (n int) {
	var all []uint64
	var chain [8]byte
	if salt != "" {
		h := fnv.New64a()
		_, _ = h.Write([]byte(salt))
		binary.LittleEndian.PutUint64(chain[:], h.Sum64())
	}
	for ; len(prompt) >= blockBytes && len(all) < c.most; prompt = prompt[blockBytes:] {
		h := fnv.New64a()
		_, _ = h.Write(chain[:])
		_, _ = h.Write([]byte(prompt[:blockBytes]))
		all = append(all, h.Sum64())
		binary.LittleEndian.PutUint64(chain[:], h.Sum64())
	}
	for n < len(all) && c.blocks[all[n]] != nil {
		n++
	}
	for _, hash := range slices.Backward(all) { // the beginning is forgotten last
		if e := c.blocks[hash]; e != nil {
			c.used.MoveToFront(e)
			continue
		}
		c.blocks[hash] = c.used.PushFront(hash)
		if c.used.Len() > c.most {
			last := c.used.Back()
			if hash, ok := last.Value.(uint64); ok {
				delete(c.blocks, hash)
			}
			c.used.Remove(last)
		}
	}
	return n
}
