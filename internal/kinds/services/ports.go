package services

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"carob/internal/base/errkind"
)

// ports allocates node ports: each number belongs to one service, for all protocols.
type ports struct {
	low, high int
	// Random allocation prefers the part above, so that it rarely collides with explicitly
	// requested ports, which users usually choose from the lower end.
	reserved int
	mu       sync.Mutex
	used     map[int]struct{}
	leaks    map[int]int // ports without a service, with the number of repairs for which they are still kept
}

var (
	errPortTaken = errors.New("provided port is already allocated")
	errFull      = errors.New("range is full")
)

func newPorts(low, high int) (*ports, error) {
	if low < 1 || high > 65535 || low > high {
		return nil, errkind.Errorf(errkind.Invalid, "the node port range %d-%d is not within 1-65535", low, high)
	}
	p := &ports{low: low, high: high, used: map[int]struct{}{}, leaks: map[int]int{}}
	if size := high - low + 1; size > 16 {
		p.reserved = min(max(16, size/32), 128)
	}
	return p, nil
}

// has reports whether a number is in the range.
func (p *ports) has(number int) bool { return number >= p.low && number <= p.high }

func (p *ports) String() string { return fmt.Sprintf("%d-%d", p.low, p.high) }

// rebuild marks the ports of services as used. A port without a service is kept for two more
// repairs: its service may be about to be stored.
func (p *ports) rebuild(served map[int]struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := range p.used {
		if _, ok := served[n]; ok {
			delete(p.leaks, n)
			continue
		}
		left, seen := p.leaks[n]
		if !seen {
			left = 2
		}
		if left == 0 {
			delete(p.leaks, n)
			delete(p.used, n)
			continue
		}
		p.leaks[n] = left - 1
	}
	for n := range served {
		p.used[n] = struct{}{}
	}
}

func (p *ports) taken(number int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.used[number]
	return ok
}

func (p *ports) release(numbers ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range numbers {
		delete(p.used, n)
		delete(p.leaks, n)
	}
}

// portClaim holds the ports that one request allocates; a dry run has no effect.
type portClaim struct {
	*ports
	dry  bool
	took []int
}

func (c *portClaim) take(number int) (err error) {
	defer func() { c.claimed(static, err) }()
	if !c.has(number) {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %v", c.ports)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.free(number) {
		return errPortTaken
	}
	c.markUsed(number)
	return nil
}

// next allocates any port, from the reserved part only if the other is full.
func (c *portClaim) next() (number int, err error) {
	defer func() { c.claimed(dynamic, err) }()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, part := range [][2]int{{c.low + c.reserved, c.high + 1}, {c.low, c.low + c.reserved}} {
		size := part[1] - part[0]
		if size == 0 {
			continue
		}
		start := rand.IntN(size)
		for i := range size {
			if n := part[0] + (start+i)%size; c.free(n) {
				c.markUsed(n)
				return n, nil
			}
		}
	}
	return 0, errFull
}

func (c *portClaim) free(number int) bool {
	if c.dry && slices.Contains(c.took, number) {
		return false
	}
	_, used := c.used[number]
	return !used
}

func (c *portClaim) markUsed(number int) {
	if !c.dry {
		c.used[number] = struct{}{}
	}
	c.took = append(c.took, number)
}

// undo releases the allocated ports.
func (c *portClaim) undo() {
	if !c.dry {
		c.release(c.took...)
	}
}
