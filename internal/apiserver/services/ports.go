package services

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"carob/internal/base/errkind"
)

// ports hands out node ports. The same number may be used once per protocol.
type ports struct {
	low, high int
	mu        sync.Mutex
	used      map[port]struct{}
}

type port struct {
	protocol string
	number   int
}

func newPorts(low, high int) (*ports, error) {
	if low < 1 || high > 65535 || low > high {
		return nil, errkind.Errorf(errkind.Invalid, "the node port range %d-%d is not within 1-65535", low, high)
	}
	return &ports{low: low, high: high, used: map[port]struct{}{}}, nil
}

func (p *ports) take(want port) error {
	if want.number < p.low || want.number > p.high {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", p.low, p.high)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.used[want]; ok {
		return fmt.Errorf("provided port is already allocated")
	}
	p.used[want] = struct{}{}
	return nil
}

// next takes a number that no protocol uses, so that a service can later offer
// the same one for another protocol.
func (p *ports) next(protocol string) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.high - p.low + 1
	start := rand.IntN(n)
	for i := range n {
		number := p.low + (start+i)%n
		if p.free(number) {
			p.used[port{protocol, number}] = struct{}{}
			return number, nil
		}
	}
	return 0, errkind.Errorf(errkind.Exhausted, "range is full")
}

func (p *ports) free(number int) bool {
	for _, protocol := range []string{"TCP", "UDP", "SCTP"} {
		if _, ok := p.used[port{protocol, number}]; ok {
			return false
		}
	}
	return true
}

func (p *ports) release(used port) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, used)
}
