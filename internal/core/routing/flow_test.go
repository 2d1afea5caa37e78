package routing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// full returns a saturated pool with flow control.
func full(t testing.TB, flow string) *Pool {
	t.Helper()
	p := pool(config(t, `"featureGates": ["flowControl"], "plugins": [{"type": "concurrency-detector",
		"parameters": {"maxConcurrency": 1}}], "schedulingProfiles": [{"name": "a"}],
		"saturationDetector": {"pluginRef": "concurrency-detector"}, "flowControl": {`+flow+`}`), 1)
	return p
}

// The next request is one of the highest priority; with round robin the flows of a priority take turns.
func TestPriorityAndRoundRobin(t *testing.T) {
	p := full(t, `"defaultPriorityBand": {"fairnessPolicyRef": "round-robin-fairness-policy"}`)
	_, busy := serve(t, p, &Request{}, begin)
	names := map[Ticket]string{}
	hold := func(name string, priority int, flow string) {
		t.Helper()
		r := &Request{Priority: priority, FairnessID: flow}
		if d := p.Decide(r, begin); d.Verdict != Hold {
			t.Fatalf("%s: %s %s", name, d.Verdict, d.Reason)
		}
		names[p.Enqueue(r, begin)] = name
	}
	for i := range 4 {
		hold(fmt.Sprint("noisy", i), 0, "noisy")
	}
	hold("shed", -1, "noisy")
	hold("quiet0", 0, "quiet")
	hold("quiet1", 0, "quiet")
	hold("critical", 5, "noisy")
	if ticket, _ := p.Next(begin); ticket != 0 {
		t.Fatalf("%s continues without room", names[ticket])
	}
	var got []string
	for p.Held() > 0 {
		p.Ended(&busy, Answered, 0, begin)
		ticket, d := p.Next(begin)
		if d.Verdict != Serve {
			t.Fatalf("%q: %s", names[ticket], d.Verdict)
		}
		got = append(got, names[ticket])
		busy = p.Sent(d.Chosen[0], &Request{}, begin)
	}
	want := "critical noisy0 quiet0 noisy1 quiet1 noisy2 noisy3 shed"
	if strings.Join(got, " ") != want {
		t.Errorf("%v\nwant %s", got, want)
	}
}

// The priorities of InferenceObjectives are any int32: those at its ends are first and last, and have bands of their
// own.
func TestPrioritiesAtTheEnds(t *testing.T) {
	p := full(t, `"maxRequests": "9"`)
	_, busy := serve(t, p, &Request{}, begin)
	priorities := map[Ticket]int{}
	for _, n := range []int{0, math.MinInt32, math.MaxInt32, -1, 1} {
		r := &Request{Priority: n}
		if d := p.Decide(r, begin); d.Verdict != Hold {
			t.Fatalf("%d: %s %s", n, d.Verdict, d.Reason)
		}
		priorities[p.Enqueue(r, begin)] = n
	}
	var got []int
	for p.Held() > 0 {
		p.Ended(&busy, Answered, 0, begin)
		ticket, d := p.Next(begin)
		got = append(got, priorities[ticket])
		busy = p.Sent(d.Chosen[0], &Request{}, begin)
	}
	if want := []int{math.MaxInt32, 1, 0, -1, math.MinInt32}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	for n, shed := range map[int]bool{math.MinInt32: true, math.MaxInt32: false} { // without flow control
		q := pool(DefaultConfig(), 1)
		setStats(q, 0, begin, Stats{Waiting: 100})
		if d := q.Decide(&Request{Priority: n}, begin); (d.Reason == Saturated) != shed {
			t.Errorf("%d: %s %s", n, d.Verdict, d.Reason)
		}
	}
}

// Orders within a flow.
func TestOrders(t *testing.T) {
	for order, want := range map[string]string{"fcfs-ordering-policy": "abc", "edf-ordering-policy": "cab",
		"slo-deadline-ordering-policy": "bca"} {
		p := full(t, `"defaultPriorityBand": {"orderingPolicyRef": "`+order+`"}`)
		_, busy := serve(t, p, &Request{}, begin)
		names := map[Ticket]string{}
		for i, r := range []Request{{Deadline: begin.Add(50 * time.Second)}, {TTFT: time.Second},
			{Deadline: begin.Add(5 * time.Second)}} {
			r.Received = begin
			names[p.Enqueue(&r, begin.Add(time.Duration(i)*time.Millisecond))] = string(rune('a' + i)) //nolint:gosec
		}
		got := ""
		for p.Held() > 0 {
			p.Ended(&busy, Answered, 0, begin)
			ticket, d := p.Next(begin)
			got += names[ticket]
			busy = p.Sent(d.Chosen[0], &Request{}, begin)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", order, got, want)
		}
	}
}

// A later request does not overtake held ones of its priority or of a higher one, even if there is
// room.
func TestNewRequestsWaitBehindHeldOnes(t *testing.T) {
	p := full(t, ``)
	_, busy := serve(t, p, &Request{}, begin)
	p.Enqueue(&Request{}, begin)
	p.Ended(&busy, Answered, 0, begin)
	for priority, want := range map[int]Verdict{-1: Hold, 0: Hold, 1: Serve} {
		if d := p.Decide(&Request{Priority: priority}, begin); d.Verdict != want {
			t.Errorf("priority %d: %s", priority, d.Verdict)
		}
	}
}

// The queue is limited by requests and bytes, per band and in total.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		flow string
		fit  int // requests of 100 bytes
	}{
		{`"defaultPriorityBand": {"maxRequests": "3"}`, 3}, {`"defaultPriorityBand": {"maxBytes": "250"}`, 2},
		{`"maxRequests": "4"`, 4}, {`"maxBytes": "99"`, 0}, {`"defaultPriorityBand": {"maxBytes": "99"}`, 0},
	} {
		p := full(t, c.flow)
		serve(t, p, &Request{}, begin)
		r := &Request{Bytes: 100}
		fit := 0
		for ; fit < 10; fit++ {
			if d := p.Decide(r, begin); d.Verdict != Hold {
				if d.Reason != Saturated {
					t.Errorf("%s: %s", c.flow, d.Reason)
				}
				break
			}
			p.Enqueue(r, begin)
		}
		if fit != c.fit {
			t.Errorf("%s: %d requests are held, not %d", c.flow, fit, c.fit)
		}
	}
	p := full(t, ``)
	serve(t, p, &Request{}, begin)
	for i := range mostBands + 50 { // priorities that a client makes up
		if d := p.Decide(&Request{Priority: i}, begin); d.Verdict == Hold {
			p.Enqueue(&Request{Priority: i}, begin)
		}
	}
	if len(p.flow.bands) != mostBands {
		t.Errorf("%d bands", len(p.flow.bands))
	}
}

// After random operations: each held request ends once, the sums are correct, and no request expires early or late.
func TestEachHeldRequestEndsOnce(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := full(t, `"defaultRequestTTL": "5s", "defaultPriorityBand": {"fairnessPolicyRef": "round-robin-fairness-policy"}`)
		now := begin
		held := map[Ticket]time.Time{} // deadline
		bytes := map[Ticket]int64{}
		var flying []Flight
		gone := func(t *testing.T, ticket Ticket) {
			if _, ok := held[ticket]; !ok {
				t.Fatalf("seed %d: ticket %d ends twice", seed, ticket)
			}
			delete(held, ticket)
			delete(bytes, ticket)
		}
		for range 300 {
			now = now.Add(time.Duration(r.IntN(400)) * time.Millisecond)
			for {
				ticket, why, next := p.Expire(now)
				if ticket == 0 {
					if len(held) > 0 != !next.IsZero() {
						t.Fatalf("seed %d: %d are held, the next expires at %s", seed, len(held), next)
					}
					break
				}
				if why != Expired || held[ticket].After(now) {
					t.Fatalf("seed %d: %s at %s, it had until %s", seed, why, now, held[ticket])
				}
				gone(t, ticket)
			}
			for ticket, until := range held {
				if !until.After(now) {
					t.Fatalf("seed %d: ticket %d is held at %s, it had until %s", seed, ticket, now, until)
				}
			}
			switch r.IntN(4) {
			case 0, 1:
				req := &Request{Priority: r.IntN(3) - 1, FairnessID: fmt.Sprint(r.IntN(4)), Bytes: r.IntN(1000)}
				until := now.Add(5 * time.Second)
				if r.IntN(3) == 0 {
					req.Deadline = now.Add(time.Duration(1+r.IntN(9000)) * time.Millisecond)
					if req.Deadline.Before(until) {
						until = req.Deadline
					}
				}
				switch d := p.Decide(req, now); d.Verdict {
				case Serve:
					flying = append(flying, p.Sent(d.Chosen[0], req, now))
				case Hold:
					ticket := p.Enqueue(req, now)
					held[ticket], bytes[ticket] = until, int64(req.Bytes)
				case Refuse:
					t.Fatalf("seed %d: %s", seed, d.Reason)
				}
			case 2:
				if n := len(flying); n > 0 {
					p.Ended(&flying[n-1], Answered, 0, now)
					flying = flying[:n-1]
				}
				if ticket, d := p.Next(now); ticket != 0 {
					gone(t, ticket)
					flying = append(flying, p.Sent(d.Chosen[0], &Request{}, now))
				}
			default:
				for _, ticket := range slices.Sorted(func(yield func(Ticket) bool) {
					for k := range held {
						if !yield(k) {
							return
						}
					}
				}) {
					if r.IntN(10) == 0 {
						if !p.Cancel(ticket) || p.Cancel(ticket) {
							t.Fatalf("seed %d: a cancel of %d", seed, ticket)
						}
						gone(t, ticket)
					}
				}
			}
			sum := int64(0)
			for _, n := range bytes {
				sum += n
			}
			if p.Held() != len(held) || p.flow.bytes != sum || len(p.flow.spots) != len(held) {
				t.Fatalf("seed %d: %d of %d bytes are held, not %d of %d", seed, p.Held(), p.flow.bytes, len(held), sum)
			}
		}
	}
}

// When there is room, only as many requests continue before the next scrape as fill a server: its queue, and the
// number that it can run.
func TestHeldRequestsContinue(t *testing.T) {
	for _, c := range []struct {
		before Stats
		want   int
	}{{Stats{CacheUse: 0.9}, 5}, {Stats{Waiting: 9, Running: 4}, 5 + 4 - 2}} {
		p := pool(config(t, `"featureGates": ["flowControl"], "plugins": [{"type": "queue-scorer"}]`), 1)
		setStats(p, 0, begin, c.before)
		for range 20 {
			if d := p.Decide(&Request{}, begin); d.Verdict != Hold {
				t.Fatalf("%s", d.Verdict)
			}
			p.Enqueue(&Request{}, begin)
		}
		now := begin.Add(50 * time.Millisecond)
		for i, want := range []int{c.want, c.want} { // a second scrape without anything new has the same room again
			var flights []Flight
			setStats(p, 0, now, Stats{Running: 2})
			n := 0
			for ticket, d := p.Next(now); ticket != 0; ticket, d = p.Next(now) {
				flights = append(flights, p.Sent(d.Chosen[0], &Request{}, now))
				n++
			}
			if n != want {
				t.Errorf("%+v, scrape %d: %d requests continued, not %d", c.before, i, n, want)
			}
			now = now.Add(50 * time.Millisecond)
			for k := range flights {
				p.Ended(&flights[k], Answered, 0, now)
			}
		}
	}
}
