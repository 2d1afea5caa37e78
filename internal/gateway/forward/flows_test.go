package forward

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

func keyFrom(n int) flowKey {
	return flowKey{client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 9)}
}

// A flood of invented clients has a bound and displaces only others that may be invented, the one that has waited
// longest first. Clients that have answered an answer stay.
func TestFlowsAreBounded(t *testing.T) {
	var open atomic.Int64
	f := newFlows(&open, 1<<20, LeavingTime)
	now := time.Unix(1000, 0)
	known, _ := f.begin(keyFrom(1<<20), now)
	f.received(known, now)
	if f.sent(known.flowKey, now) != known || known.state != steadyFlow {
		t.Fatalf("a client that answers: %+v", known)
	}
	displaced := 0
	for n := range 3 * mostFlows {
		now = now.Add(time.Microsecond)
		one, gone := f.begin(keyFrom(n), now)
		if one == nil {
			t.Fatalf("client %d finds no room", n)
		}
		if gone != nil {
			if gone.flowKey != keyFrom(displaced) {
				t.Fatalf("%v has gone before %v", gone.flowKey, keyFrom(displaced))
			}
			displaced++
		}
	}
	if open.Load() != mostFlows || len(f.all) != mostFlows || len(f.clients) != mostFlows {
		t.Errorf("%d flows, %d known, %d clients", open.Load(), len(f.all), len(f.clients))
	}
	if known.place == nil || f.sent(known.flowKey, now) != known {
		t.Error("a client that is there was displaced")
	}
	if ended, next := f.expire(now.Add(newFlowTime)); len(ended) != mostFlows-1 || next <= 0 {
		t.Errorf("%d have ended, look again after %v", len(ended), next)
	}
	if ended, next := f.expire(now.Add(steadyFlowTime)); len(ended) != 1 || next != 0 || open.Load() != 0 ||
		len(f.all)+len(f.clients) != 0 {
		t.Errorf("at last %d have ended, %v, %d are open", len(ended), next, open.Load())
	}
}

// One client has a part of the room only, however many ports or addresses of its network it sends from; and when all
// clients are known to be there, a new one finds no room.
func TestFlowsOfOneClient(t *testing.T) {
	var open atomic.Int64
	f := newFlows(&open, 1<<20, LeavingTime)
	now := time.Unix(1000, 0)
	network := netip.MustParseAddr("2001:db8::").As16()
	for n := range flowsOfOne + 10 {
		network[14], network[15] = byte(n>>8), byte(n)
		one, _ := f.begin(flowKey{client: netip.AddrPortFrom(netip.AddrFrom16(network), uint16(n))}, now)
		if (one != nil) != (n < flowsOfOne) {
			t.Fatalf("flow %d of one network: %v", n, one)
		}
		if one != nil {
			f.received(one, now)
			f.sent(one.flowKey, now)
		}
	}
	for n := 0; open.Load() < mostFlows; n++ {
		one, _ := f.begin(keyFrom(n), now)
		f.received(one, now)
		f.sent(one.flowKey, now)
	}
	if one, gone := f.begin(keyFrom(1<<20), now); one != nil || gone != nil || open.Load() != mostFlows {
		t.Errorf("there was room: %v, %v, %d", one, gone, open.Load())
	}
}

// A flow that leaves waits for answers only for a moment, whatever comes; its client begins another one. Flows end
// once.
func TestFlowsLeave(t *testing.T) {
	var open atomic.Int64
	f := newFlows(&open, 1<<20, LeavingTime)
	now := time.Unix(1000, 0)
	one, _ := f.begin(keyFrom(1), now)
	f.leave(one, now)
	f.leave(one, now.Add(time.Hour)) // twice
	if f.sent(one.flowKey, now) != nil {
		t.Error("it is still there for its client")
	}
	other, _ := f.begin(one.flowKey, now)
	f.received(one, now.Add(LeavingTime-1))
	ended, _ := f.expire(now.Add(LeavingTime))
	if len(ended) != 1 || ended[0] != one || f.end(one) || f.sent(one.flowKey, now) != other || open.Load() != 1 {
		t.Errorf("%v have ended, %d are open", ended, open.Load())
	}
	f.received(one, now) // late
	if !f.end(other) || open.Load() != 0 {
		t.Error("the other one was not open")
	}
}

// A process with few descriptors has fewer flows.
func TestFewFlows(t *testing.T) {
	var open atomic.Int64
	f := newFlows(&open, 8, LeavingTime)
	for n := range 7 {
		if one, _ := f.begin(flowKey{client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), uint16(n+1))},
			time.Now()); (one != nil) != (n < 6) {
			t.Errorf("flow %d of one client: %v", n, one)
		}
	}
	for n := range 20 {
		f.begin(flowKey{client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(n)}), 1)}, time.Now())
	}
	if open.Load() != 8 {
		t.Errorf("%d flows", open.Load())
	}
}
