package forward

import (
	"container/list"
	"net/netip"
	"sync/atomic"
	"time"
)

// Limits of flows. The times are those of Linux's connection tracking for UDP.
const (
	mostFlows      = 16384             // of all ports
	flowsOfOne     = mostFlows / 4     // of one client, which leaves a quarter to others where fewer are allowed
	newFlowTime    = 30 * time.Second  // without a datagram, before the client has sent one after a reply
	steadyFlowTime = 120 * time.Second // and after that
	expiryInterval = time.Second       // between two checks for flows that have ended
)

// flowKey names a flow: a client, and the address of this host that it sends to.
type flowKey struct {
	client netip.AddrPort
	local  netip.Addr // not valid: the port listens on one address
}

// flowState is the state of a flow.
type flowState int

const (
	newFlow     flowState = iota // its source address may be forged: it is removed first at the limit
	steadyFlow                   // its client has sent a datagram after a reply, so the address is real
	leavingFlow                  // only waits for replies
	flowStates
)

// flow is the datagrams of one client, and the replies to them.
type flow struct {
	flowKey
	state    flowState
	last     time.Time // of the last datagram or reply
	answered bool
	place    *list.Element // nil: it has ended
	session  *Session
}

// flows are those of one port. It has no clock and no lock: the caller has both.
type flows struct {
	all     map[flowKey]*flow  // except leaving ones
	clients map[netip.Addr]int // flows of one client: an IPv4 address, or 64 bits of an IPv6 address
	states  [flowStates]*list.List
	open    *atomic.Int64 // of all ports
	most    int64         // of all ports
	leaving time.Duration // how long leaving flows stay
}

func newFlows(open *atomic.Int64, most int64, leaving time.Duration) *flows {
	f := &flows{leaving: leaving, all: map[flowKey]*flow{}, clients: map[netip.Addr]int{}, open: open,
		most: min(most, mostFlows)}
	for i := range f.states {
		f.states[i] = list.New()
	}
	return f
}

// clientOf is the part of an address that a client cannot change easily.
func clientOf(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a
	}
	p, err := a.Prefix(64)
	if err != nil {
		return a
	}
	return p.Addr()
}

// sent finds the flow of a datagram from a client; nil: there is none.
func (f *flows) sent(key flowKey, now time.Time) *flow {
	one := f.all[key]
	if one == nil {
		return nil
	}
	if one.state == newFlow && one.answered {
		f.move(one, steadyFlow)
	}
	f.touch(one, now)
	return one
}

// received records a reply.
func (f *flows) received(one *flow, now time.Time) {
	if one.place == nil {
		return
	}
	one.answered = true
	if one.state != leavingFlow { // otherwise nothing extends its time
		f.touch(one, now)
	}
}

func (f *flows) touch(one *flow, now time.Time) {
	one.last = now
	f.states[one.state].MoveToBack(one.place)
}

func (f *flows) move(one *flow, to flowState) {
	f.states[one.state].Remove(one.place)
	one.state = to
	one.place = f.states[to].PushBack(one)
}

// begin adds a flow. At the limit, it removes the flow that has been idle for the longest time and whose source address
// may be forged. It returns nil if there is none, or if the client has too many flows.
func (f *flows) begin(key flowKey, now time.Time) (one, gone *flow) {
	client := clientOf(key.client.Addr())
	if int64(f.clients[client]) >= max(1, min(flowsOfOne, f.most*3/4)) {
		return nil, nil
	}
	if f.open.Add(1) > f.most {
		first := f.states[leavingFlow].Front()
		if first == nil {
			first = f.states[newFlow].Front()
		}
		if first == nil {
			f.open.Add(-1)
			return nil, nil
		}
		gone, _ = first.Value.(*flow)
		f.end(gone)
	}
	one = &flow{flowKey: key, last: now}
	one.place = f.states[newFlow].PushBack(one)
	f.all[key] = one
	f.clients[client]++
	return one, gone
}

// leave makes the next datagram of the client begin another flow.
func (f *flows) leave(one *flow, now time.Time) {
	if one.place == nil || one.state == leavingFlow {
		return
	}
	delete(f.all, one.flowKey)
	one.last = now
	f.move(one, leavingFlow)
}

// end removes a flow. It is false if it has ended before.
func (f *flows) end(one *flow) bool {
	if one.place == nil {
		return false
	}
	f.states[one.state].Remove(one.place)
	one.place = nil
	f.open.Add(-1)
	if f.all[one.flowKey] == one {
		delete(f.all, one.flowKey)
	}
	client := clientOf(one.client.Addr())
	if f.clients[client]--; f.clients[client] == 0 {
		delete(f.clients, client)
	}
	return true
}

// expire ends the flows that have been idle too long, and returns them; next is the time until the next check, 0: there
// is no flow.
func (f *flows) expire(now time.Time) (ended []*flow, next time.Duration) {
	for state, limit := range [flowStates]time.Duration{newFlowTime, steadyFlowTime, f.leaving} {
		for {
			first := f.states[state].Front()
			if first == nil {
				break
			}
			one, _ := first.Value.(*flow)
			if left := limit - now.Sub(one.last); left > 0 {
				if left = max(left, expiryInterval); next == 0 || left < next {
					next = left
				}
				break
			}
			f.end(one)
			ended = append(ended, one)
		}
	}
	return ended, next
}

// each returns all flows except the leaving ones.
func (f *flows) each() (out []*flow) {
	for _, one := range f.all {
		out = append(out, one)
	}
	return out
}
