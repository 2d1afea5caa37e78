package inference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/legacyregistry"

	"carob/internal/core/modelbody"
	"carob/internal/core/routing"
)

// fleet answers scrapes instead of model servers.
type fleet struct {
	mu      sync.Mutex
	waiting map[string]int // by address; below 0: the server does not answer
	more    map[string]int // bytes of its page that mean nothing
	scraped map[string]int
}

func newFleet() *fleet {
	return &fleet{waiting: map[string]int{}, more: map[string]int{}, scraped: map[string]int{}}
}

func (f *fleet) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scraped[r.URL.Host]++
	n := f.waiting[r.URL.Host]
	if n < 0 {
		return nil, errors.New("connection refused")
	}
	text := fmt.Sprintf("vllm:num_requests_waiting %d\nvllm:num_requests_running 4\nvllm:kv_cache_usage_perc 0.1\n", n)
	text += strings.Repeat("#\n", f.more[r.URL.Host]/2)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

func (f *fleet) set(addr string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting[addr] = n
}

func (f *fleet) scrapes() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.scraped {
		n += k
	}
	return n
}

func endpoints(n int) (out []routing.Endpoint) {
	for i := range n {
		out = append(out, routing.Endpoint{Address: netip.MustParseAddrPort(addr(i)), Ready: true,
			Pod: types.UID(fmt.Sprint(i)), Name: types.NamespacedName{Namespace: "n", Name: fmt.Sprint("p", i)}})
	}
	return out
}

func addr(i int) string { return fmt.Sprintf("10.0.0.%d:8000", i+1) }

const flowControl = `{"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig",
	"featureGates": ["flowControl"], "plugins": [{"type": "queue-scorer"}],
	"schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
	"flowControl": {"defaultRequestTTL": "10s", "defaultPriorityBand": {"priority": 0, "maxRequests": "3"}}}`

// start makes a pool with n servers, in a bubble.
func start(t *testing.T, text string, n int) (*Pool, *fleet) {
	t.Helper()
	c := routing.DefaultConfig()
	if text != "" {
		var err error
		if c, err = routing.ParseConfig([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	f := newFleet()
	p := New(types.NamespacedName{Namespace: "n", Name: "pool"}, c, f)
	t.Cleanup(p.Close)
	p.SetEndpoints(endpoints(n))
	return p, f
}

func pick(t *testing.T, p *Pool) *Pick {
	t.Helper()
	k, err := p.Pick(t.Context(), &routing.Request{Model: "m", Bytes: 100})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Servers are scraped often while there are requests, rarely otherwise, and at once when requests begin.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t, "", 2)
		time.Sleep(time.Minute)
		if n := f.scrapes(); n < 2*11 || n > 2*15 {
			t.Errorf("%d scrapes of 2 servers in a quiet minute, expected about 24", n)
		}
		before := f.scrapes()
		k := pick(t, p)
		synctest.Wait()
		if n := f.scrapes() - before; n != 2 {
			t.Errorf("%d scrapes with the first request, not one of each server", n)
		}
		before = f.scrapes()
		time.Sleep(10 * time.Second) // the request is not over
		if n := f.scrapes() - before; n < 2*180 || n > 2*220 {
			t.Errorf("%d scrapes of 2 servers in 10 busy seconds, expected about 400", n)
		}
		k.End(Result{})
		k.End(Result{})
		time.Sleep(idleAfter + time.Second)
		before = f.scrapes()
		time.Sleep(time.Minute)
		if n := f.scrapes() - before; n > 2*15 {
			t.Errorf("%d scrapes in a quiet minute", n)
		}
	})
}

// A server that does not respond is scraped less often, and never delays scrapes of others.
func TestDeadServerIsScrapedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t, "", 2)
		f.set(addr(0), -1)
		k := pick(t, p)
		defer k.End(Result{})
		time.Sleep(20 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.scraped[addr(0)] > 25 || f.scraped[addr(1)] < 350 {
			t.Errorf("scrapes: %v", f.scraped)
		}
		if _, all := p.Statuses(); all[0].Problem == "" || all[1].Problem != "" {
			t.Errorf("problems: %q, %q", all[0].Problem, all[1].Problem)
		}
	})
}

// A server with large pages is scraped less often, so that it takes a bounded part of a processor.
func TestLargePagesAreScrapedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t, "", 3)
		f.mu.Lock()
		f.more[addr(0)], f.more[addr(1)] = mostPage-1000, mostPage/4
		f.mu.Unlock()
		k := pick(t, p)
		defer k.End(Result{})
		time.Sleep(20 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := f.scraped; n[addr(0)] > 25 || n[addr(1)] > 100 || n[addr(1)] < 60 || n[addr(2)] < 350 {
			t.Errorf("scrapes: %v", n)
		}
		_, all := p.Statuses()
		for _, s := range all {
			if s.Problem != "" || s.Stats.Running != 4 {
				t.Errorf("%+v", s)
			}
		}
	})
}

// Requests go to the server with the shorter queue, according to its metrics and to the requests sent since.
func TestPick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t, "", 2)
		f.set(addr(0), 3)
		time.Sleep(time.Minute)
		for range 2 {
			if k := pick(t, p); k.Address().String() != addr(1) {
				t.Errorf("%s was picked", k.Address())
			}
		}
		for range 2 { // 3 waiting there, 2 sent here: here until it has more
			pick(t, p)
		}
		counts := map[string]int{}
		for range 10 {
			k := pick(t, p)
			counts[k.Address().String()]++
		}
		if counts[addr(0)] < 3 || counts[addr(1)] < 3 {
			t.Errorf("a burst between two scrapes is not spread: %v", counts)
		}
	})
}

// A held request waits for an event: room, its time, the client, or the end of the pool.
func TestHeldRequestsWaitForEvents(t *testing.T) {
	for _, c := range []struct {
		name   string
		event  func(p *Pool, f *fleet, cancel func())
		reason routing.Reason
		after  time.Duration // at most
	}{
		{"room", func(_ *Pool, f *fleet, _ func()) { f.set(addr(0), 0) }, "", 200 * time.Millisecond},
		{"another server", func(p *Pool, f *fleet, _ func()) { f.set(addr(1), 0); p.SetEndpoints(endpoints(2)) }, "",
			200 * time.Millisecond},
		{"its time", func(*Pool, *fleet, func()) {}, routing.Expired, 10 * time.Second},
		{"no servers, and its time", func(p *Pool, _ *fleet, _ func()) { p.SetEndpoints(nil) }, routing.NoEndpoints,
			10 * time.Second},
		{"the client", func(_ *Pool, _ *fleet, cancel func()) { cancel() }, routing.Cancelled, 0},
		{"the end", func(p *Pool, _ *fleet, _ func()) { p.Close() }, routing.ShuttingDown, 0},
		{"a configuration without flow control, and room", func(p *Pool, f *fleet, _ func()) {
			p.Configure(routing.DefaultConfig())
			f.set(addr(0), 0)
		}, "", 200 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, f := start(t, flowControl, 1)
				f.set(addr(0), 50)
				time.Sleep(time.Minute)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 1)
				var k *Pick
				go func() {
					var err error
					k, err = p.Pick(ctx, &routing.Request{Model: "m"})
					done <- err
				}()
				time.Sleep(time.Second)
				select {
				case err := <-done:
					t.Fatalf("the request was not held: %v", err)
				default:
				}
				began := time.Now()
				c.event(p, f, cancel)
				err := <-done
				if got := reasonOf(err); got != c.reason || (err == nil) != (c.reason == "") {
					t.Errorf("%v, want %q", err, c.reason)
				}
				if took := time.Since(began); took > c.after {
					t.Errorf("the request went on after %s", took)
				}
				if k != nil {
					k.End(Result{})
				}
				if sums, _ := p.Statuses(); sums.Held != 0 {
					t.Errorf("%d requests are held", sums.Held)
				}
			})
		})
	}
}

// Requests that are held, or arrive late, when the InferencePool gets another picker are not refused, nor counted as
// refused.
func TestReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t, flowControl, 1)
		f.set(addr(0), 50)
		time.Sleep(time.Minute)
		results := make(chan error, 1)
		pick := func() {
			_, err := p.Pick(t.Context(), &routing.Request{Model: "m"})
			results <- err
		}
		go pick()
		synctest.Wait()
		p.Replaced()
		p.Close()
		if err := <-results; !errors.Is(err, ErrReplaced) {
			t.Errorf("held: %v", err)
		}
		pick()
		if err := <-results; !errors.Is(err, ErrReplaced) {
			t.Errorf("late: %v", err)
		}
		if n := p.Refusals(); n != 0 {
			t.Errorf("%d are refused", n)
		}
	})
}

// The queue is bounded, and when room comes only so many go on as there is room for.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t, flowControl, 1)
		f.set(addr(0), 50)
		time.Sleep(time.Minute)
		results := make(chan error, 5)
		for range 5 {
			go func() {
				_, err := p.Pick(t.Context(), &routing.Request{Model: "m"})
				results <- err
			}()
		}
		synctest.Wait()
		for range 2 {
			if got := reasonOf(<-results); got != routing.Saturated {
				t.Errorf("%q", got)
			}
		}
		f.set(addr(0), 0)
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}

// Without flow control what can be shed is, and what is critical never.
func TestShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t, "", 1)
		f.set(addr(0), 50)
		time.Sleep(time.Minute)
		_, err := p.Pick(t.Context(), &routing.Request{Model: "m", Priority: routing.Sheddable})
		if r, ok := errors.AsType[*Refused](err); !ok || r.Status() != 429 || r.Reason != routing.Saturated {
			t.Errorf("%v", err)
		}
		pick(t, p).End(Result{})
		f.set(addr(0), 0)
		time.Sleep(time.Minute)
		if _, err := p.Pick(t.Context(), &routing.Request{Model: "m", Priority: routing.Sheddable}); err != nil {
			t.Errorf("a quiet pool refuses: %v", err)
		}
	})
}

// A request goes to a second server once, and never after the first byte of an answer.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := start(t, "", 4)
		k := pick(t, p)
		first := k.Address()
		second, ok := k.Failed(false) // no connection
		if !ok || second == first {
			t.Fatalf("%s after %s, %t", second, first, ok)
		}
		third, ok := k.Failed(true) // it broke
		if !ok || third == second || third == first {
			t.Fatalf("%s after %s, %t", third, second, ok)
		}
		if at, ok := k.Failed(true); ok {
			t.Errorf("sent a third time, to %s", at)
		}
		k.End(Result{Outcome: routing.Failed})

		k = pick(t, p)
		k.FirstByte()
		if at, ok := k.Failed(true); ok {
			t.Errorf("sent to %s after the answer had begun", at)
		}
		k.End(Result{Outcome: routing.Failed})

		k = pick(t, p)
		left := k.Endpoints()[1]
		var rest []routing.Endpoint
		for _, e := range endpoints(4) {
			if e.Address != left {
				rest = append(rest, e)
			}
		}
		p.SetEndpoints(rest)
		if at, ok := k.Failed(true); !ok || at == left {
			t.Errorf("%s, %t: it has left", at, ok)
		}
		k.End(Result{})

		k = pick(t, p)
		drains := endpoints(4)
		for i := range drains {
			drains[i].Draining = drains[i].Address == k.Endpoints()[1]
		}
		p.SetEndpoints(drains)
		if at, ok := k.Failed(true); !ok || at == k.Endpoints()[1] {
			t.Errorf("%s, %t: it drains", at, ok)
		}
		k.End(Result{})
		for _, s := range func() []Status { _, all := p.Statuses(); return all }() {
			if s.InFlight != 0 {
				t.Errorf("%s has %d requests", s.Endpoint.Address, s.InFlight)
			}
		}
	})
}

// A request that goes on at the moment in which its client gives up leaves nothing behind.
func TestReleaseWhileTheClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t, flowControl, 1)
		left := 0
		for range 40 {
			f.set(addr(0), 50)
			time.Sleep(time.Minute)
			r := &routing.Request{Model: "m"}
			w := &waiter{request: r, since: time.Now(), got: make(chan *Pick, 1)}
			p.mu.Lock()
			p.wake(time.Now())
			ticket := p.state.Enqueue(r, time.Now())
			p.waiters[ticket] = w
			p.mu.Unlock()
			f.set(addr(0), 0)
			time.Sleep(time.Second) // it goes on
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			k, err := p.wait(ctx, ticket, w)
			if err == nil {
				k.End(Result{})
			} else if left++; reasonOf(err) != routing.Cancelled {
				t.Errorf("%v", err)
			}
			if _, all := p.Statuses(); all[0].InFlight != 0 {
				t.Fatalf("%d requests are in flight, the wait ended with %v", all[0].InFlight, err)
			}
		}
		if left == 0 {
			t.Error("the client was never seen to leave")
		}
	})
}

// The server that computes the prompt has the request until the answer begins, and a session finds its way back.
func TestPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := start(t, `{"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig",
			"plugins": [{"type": "prefill-filter"}, {"type": "decode-filter"}, {"type": "session-affinity-scorer"},
				{"type": "pd-profile-handler"}],
			"schedulingProfiles": [{"name": "prefill", "plugins": [{"pluginRef": "prefill-filter"}]},
				{"name": "decode", "plugins": [{"pluginRef": "decode-filter"}, {"pluginRef": "session-affinity-scorer"}]}]}`, 0)
		all := endpoints(4)
		all[0].Labels = map[string]string{routing.RoleLabel: "prefill"}
		p.SetEndpoints(all)
		inFlight := func() (out [4]int) {
			_, all := p.Statuses()
			for i := range all {
				out[i] = all[i].InFlight
			}
			return out
		}
		k, err := p.Pick(t.Context(), &routing.Request{Model: "m", Bytes: 4000})
		if err != nil || k.Prefill != all[0].Address || inFlight()[0] != 1 {
			t.Fatalf("%v, %v", err, inFlight())
		}
		header := http.Header{}
		header.Set(k.Session())
		k.FirstByte()
		if inFlight()[0] != 0 {
			t.Error("the prompt is computed, and its server still has the request")
		}
		k.End(Result{})
		for range 20 {
			prompt := make([]byte, 4000)
			again, err := p.Pick(t.Context(), p.Request(header, &modelbody.Facts{Model: "m"}, prompt, "m", 0))
			if err != nil || again.Address() != k.Address() {
				t.Fatalf("%s after %s, %v", again.Address(), k.Address(), err)
			}
			again.End(Result{Outcome: routing.Aborted})
		}
		if got := inFlight(); got != [4]int{} {
			t.Errorf("in flight: %v", got)
		}
	})
}

// Many clients at once, while servers come and go and the configuration changes: everybody gets an answer.
func TestManyClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := start(t, flowControl, 3)
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				time.Sleep(time.Duration(i%50) * 20 * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%5)*time.Second)
				defer cancel()
				k, err := p.Pick(ctx, &routing.Request{Model: "m", Priority: i%3 - 1, FairnessID: fmt.Sprint(i % 7)})
				if err != nil {
					if reasonOf(err) == "" {
						t.Errorf("no reason: %v", err)
					}
					return
				}
				if i%4 == 0 {
					k.Failed(i%8 == 0)
				}
				time.Sleep(time.Duration(i%13) * 10 * time.Millisecond)
				k.FirstByte()
				time.Sleep(time.Duration(i%11) * 10 * time.Millisecond)
				k.End(Result{OutputTokens: i})
			})
		}
		for i := range 60 {
			time.Sleep(30 * time.Millisecond)
			f.set(addr(i%3), i%9)
			p.SetEndpoints(endpoints(i % 4))
			if i%10 == 0 {
				p.Configure(routing.DefaultConfig())
			} else if c, err := ReadConfig([]byte(flowControl)); err == nil {
				p.Configure(c)
			}
		}
		for i := range 4 {
			f.set(addr(i), 0)
		}
		p.SetEndpoints(endpoints(3))
		all.Wait()
		sums, servers := p.Statuses()
		for i := range servers {
			if servers[i].InFlight != 0 {
				t.Errorf("%s has %d requests", servers[i].Endpoint.Address, servers[i].InFlight)
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if sums.Held != 0 || len(p.waiters) != 0 || p.inFlight != 0 || p.expiry != nil {
			t.Errorf("%d are held, %d wait, %d are in flight", sums.Held, len(p.waiters), p.inFlight)
		}
	})
}

// The metrics have the extension's names (2.5), and names that clients make up are bounded.
func TestFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := start(t, "", 2)
		other, _ := start(t, "", 1) // of the same name, as when a pool is made again
		for i := range mostNames + 200 {
			k, err := p.Pick(t.Context(), &routing.Request{Model: fmt.Sprint("model", i), Bytes: 10})
			if err != nil {
				t.Fatal(err)
			}
			k.FirstByte()
			k.End(Result{Status: 200, InputTokens: 5, OutputTokens: 7, AnswerBytes: 9})
		}
		other.Close()
		all, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		series := map[string]int{}
		for _, f := range all {
			series[f.GetName()] = len(f.GetMetric())
		}
		for _, name := range []string{"inference_objective_request_total", "inference_objective_request_duration_seconds",
			"inference_objective_request_ttft_seconds", "inference_objective_input_tokens",
			"inference_objective_output_tokens", "inference_objective_running_requests", "inference_pool_ready_pods",
			"inference_pool_average_queue_size", "inference_pool_average_kv_cache_utilization",
			"inference_pool_per_pod_queue_size", "inference_extension_flow_control_pool_saturation"} {
			if series[name] == 0 {
				t.Errorf("%s is missing", name)
			}
		}
		if n := series["inference_objective_request_total"]; n > mostNames+50 {
			t.Errorf("%d series: names of models are not bounded", n)
		}
		if n := len(p.figures.kept); n > mostSeries {
			t.Errorf("%d series are kept", n)
		}
	})
}

// BenchmarkPick is all that the picker does for a request among 1,000 servers, by several clients at once.
func BenchmarkPick(b *testing.B) {
	p := New(types.NamespacedName{Namespace: "n", Name: "bench"}, routing.DefaultConfig(), newFleet())
	defer p.Close()
	var all []routing.Endpoint
	for i := range 1000 {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8000) //nolint:gosec // cut off
		all = append(all, routing.Endpoint{Address: a, Pod: types.UID(a.String()), Ready: true})
	}
	p.SetEndpoints(all)
	prompt := p.Hasher().Hash(nil, "m", "", make([]byte, 8<<10))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			k, err := p.Pick(b.Context(), &routing.Request{Model: "m", Bytes: 8 << 10, Prefix: prompt})
			if err != nil {
				b.Fatal(err)
			}
			k.FirstByte()
			k.End(Result{OutputTokens: 10})
		}
	})
}

// reasonOf returns why Pick refused a request; empty: it did not.
func reasonOf(err error) routing.Reason {
	if r, ok := errors.AsType[*Refused](err); ok {
		return r.Reason
	}
	return ""
}
