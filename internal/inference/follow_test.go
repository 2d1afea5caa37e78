package inference

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/testwait"
	"carob/internal/core/routing"
)

// packed writes MessagePack, as much as servers send.
func packed(v any) []byte {
	switch v := v.(type) {
	case nil:
		return []byte{0xc0}
	case float64:
		return append([]byte{0xcb}, make([]byte, 8)...)
	case int:
		return binary.BigEndian.AppendUint64([]byte{0xcf}, uint64(v))
	case string:
		return append([]byte{0xd9, byte(len(v))}, v...)
	case []int:
		out := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(len(v)))
		for _, n := range v {
			out = append(out, packed(n)...)
		}
		return out
	case []any:
		out := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(len(v)))
		for _, o := range v {
			out = append(out, packed(o)...)
		}
		return out
	}
	panic(fmt.Sprintf("%T", v))
}

// storing is a batch with the blocks of a prompt, of 16 tokens each.
func storing(first int, tokens ...int) []byte {
	var blocks []int
	for i := range len(tokens) / 16 {
		blocks = append(blocks, first+i)
	}
	return packed([]any{1.0, []any{[]any{"BlockStored", blocks, nil, tokens, 16, nil, "GPU"}}, 0})
}

func removing(blocks ...int) []byte {
	return packed([]any{1.0, []any{[]any{"BlockRemoved", blocks, "GPU"}}})
}

// twin publishes as the PUB socket of a model server, and answers /tokenize.
type twin struct {
	t    *testing.T
	http *httptest.Server
	pub  net.Listener

	mu        sync.Mutex
	conns     []net.Conn
	topics    []string // that were subscribed to
	tokens    http.HandlerFunc
	tokenized []string // bodies of /tokenize
}

// newTwin listens where the pool will look: the events' port is the same for all servers, which have an address each.
func newTwin(t *testing.T, host string, eventPort int) *twin {
	w := &twin{t: t}
	listen := func(at string) net.Listener {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		return ln
	}
	w.pub = listen(fmt.Sprintf("%s:%d", host, eventPort))
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n")
	})
	mux.HandleFunc("/tokenize", func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.mu.Lock()
		w.tokenized = append(w.tokenized, string(body))
		answer := w.tokens
		w.mu.Unlock()
		if answer == nil { // a token for each letter
			answer = letters(body)
		}
		answer(rw, r)
	})
	w.http = &httptest.Server{Listener: listen(host + ":0"), Config: &http.Server{Handler: mux}} //nolint:gosec // a test
	w.http.Start()
	t.Cleanup(w.http.Close)
	go w.serve()
	return w
}

func letters(body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var q struct{ Prompt string }
		_ = json.Unmarshal(body, &q)
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": codes(q.Prompt), "count": len(q.Prompt)})
	}
}

func codes(text string) (out []int) {
	for _, c := range text {
		out = append(out, int(c))
	}
	return out
}

func (w *twin) address() netip.AddrPort {
	return netip.MustParseAddrPort(w.http.Listener.Addr().String())
}

func (w *twin) serve() {
	for {
		c, err := w.pub.Accept()
		if err != nil {
			return
		}
		hello := make([]byte, 64+2+25+2)
		greeting := make([]byte, 64)
		greeting[0], greeting[9], greeting[10], greeting[11] = 0xff, 0x7f, 3, 1
		copy(greeting[12:], "NULL")
		_, _ = c.Write(append(greeting, "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"...))
		if _, err := io.ReadFull(c, hello); err != nil {
			_ = c.Close()
			continue
		}
		topic := make([]byte, hello[len(hello)-1])
		_, _ = io.ReadFull(c, topic)
		w.mu.Lock()
		w.conns, w.topics = append(w.conns, c), append(w.topics, string(topic))
		w.mu.Unlock()
	}
}

func (w *twin) subscribers() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}

// publish sends a message to all who are connected.
func (w *twin) publish(number uint64, batch []byte) {
	var out []byte
	frame := func(flags byte, b []byte) {
		out = append(binary.BigEndian.AppendUint64(append(out, flags|flagLong), uint64(len(b))), b...)
	}
	frame(flagMore, []byte("kv@pod@m"))
	frame(flagMore, binary.BigEndian.AppendUint64(nil, number))
	frame(0, batch)
	w.send(out)
}

func (w *twin) send(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_, _ = c.Write(b)
	}
}

// hangUp ends all connections.
func (w *twin) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

func (w *twin) questions() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.tokenized)
}

// freeEventPort is a port that is free at the addresses.
func freeEventPort(t *testing.T) int {
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.55.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return int(netip.MustParseAddrPort(ln.Addr().String()).Port())
}

// preciseFleet is a pool of n servers whose KV events are followed.
func preciseFleet(t *testing.T, n int) (*Pool, []*twin) {
	t.Helper()
	port := freeEventPort(t)
	c, err := routing.ParseConfig(fmt.Appendf(nil, `{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig",
		"plugins": [{"type": "precise-prefix-cache-scorer", "parameters": {"speculativeIndexing": false,
			"kvEventsConfig": {"podDiscoveryConfig": {"socketPort": %d}}}}]}`, port))
	if err != nil {
		t.Fatal(err)
	}
	p := New(types.NamespacedName{Namespace: "n", Name: "pool"}, c, nil)
	t.Cleanup(p.Close)
	p.tokens = newTokenizer()
	p.tokens.patience = time.Minute
	var all []*twin
	var ends []routing.Endpoint
	for i := range n {
		w := newTwin(t, fmt.Sprintf("127.55.0.%d", 1+i), port)
		all = append(all, w)
		ends = append(ends, routing.Endpoint{Address: w.address(), Ready: true, Pod: types.UID(fmt.Sprint(i)),
			Name: types.NamespacedName{Namespace: "n", Name: fmt.Sprint("p", i)}})
	}
	p.SetEndpoints(ends)
	for _, w := range all {
		testwait.For(t, "the pool follows", func() bool { return w.subscribers() > 0 })
	}
	for i := range n { // events before the subscription are lost
		testwait.For(t, "the pool looks", func() bool { return p.cache(i).Following })
	}
	return p, all
}

func (p *Pool) cache(i int) *routing.CacheState {
	_, all := p.Statuses()
	return all[i].Cache
}

// picks returns the servers that get a prompt, as one would choose them by hand.
func picks(t *testing.T, p *Pool, prompt string) (netip.AddrPort, float64) {
	t.Helper()
	r := &routing.Request{Model: "m"}
	p.Tokens(t.Context(), r, &Prompt{Path: "/v1/completions", Body: fmt.Appendf(nil, `{"model": "m", "prompt": %q}`, prompt)})
	k, err := p.Pick(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer k.End(Result{})
	return k.Address(), k.Score
}

// The prompt goes to the server whose events have it in its cache, over a real socket: after events in the order of the
// server, a gap, a restart of the server, and an unreadable message.
func TestFollowEvents(t *testing.T) {
	p, all := preciseFleet(t, 3)
	prompt := strings.Repeat("abcdefghijklmnop", 4)
	if got := all[0].topics[0]; got != "\x01kv@" {
		t.Errorf("it subscribes with %q", got)
	}
	all[2].publish(0, storing(1, codes(prompt)...))
	testwait.For(t, "the events are taken", func() bool { return p.cache(2).Blocks == 4 })
	all[0].publish(0, storing(7, codes(prompt[:16])...))
	testwait.For(t, "the events are taken", func() bool { return p.cache(0).Blocks == 1 })
	if at, score := picks(t, p, prompt); at != all[2].address() || score != 1 {
		t.Errorf("%s, %g", at, score)
	}
	all[2].publish(1, removing(2)) // from there on nothing is shared
	testwait.For(t, "the events are taken", func() bool { return p.cache(2).Blocks == 3 })
	if _, score := picks(t, p, prompt); score != 0.25 {
		t.Error(score)
	}
	if n := len(all[0].questions()) + len(all[2].questions()); n != 1 {
		t.Errorf("the same prompt was asked for %d times", n)
	}
	for name, spoil := range map[string]func(){
		"a gap":       func() { all[2].publish(9, removing()) },
		"not a batch": func() { all[2].publish(10, []byte("{}")) },
		"two frames":  func() { all[2].send([]byte{flagMore, 1, 'k', 0, 1, 'v'}) },
	} {
		gaps := p.cache(2).Gaps
		spoil()
		testwait.For(t, name+" is noticed", func() bool { return p.cache(2).Gaps > gaps })
		if c := p.cache(2); c.Blocks != 0 || c.Whole {
			t.Errorf("after %s: %+v", name, c)
		}
	}
	all[2].hangUp()
	testwait.For(t, "it connects again", func() bool { return all[2].subscribers() == 1 && p.cache(2).Following })
	all[2].publish(0, storing(1, codes(prompt)...))
	testwait.For(t, "the events are taken", func() bool { c := p.cache(2); return c.Blocks == 4 && c.Whole })
	// Another pool configuration, or none: all connections are closed.
	p.Configure(routing.DefaultConfig())
	if p.cache(0) != nil {
		t.Error("events are followed without a configuration")
	}
}

// recorded is a connection whose other end sends something and closes it.
type recorded struct {
	net.Conn
	replay *bytes.Reader
}

func replayed(text []byte) net.Conn { return recorded{replay: bytes.NewReader(text)} }

func (r recorded) Read(p []byte) (int, error)      { return r.replay.Read(p) }
func (r recorded) Write(p []byte) (int, error)     { return len(p), nil }
func (r recorded) SetDeadline(time.Time) error     { return nil }
func (r recorded) SetReadDeadline(time.Time) error { return nil }

// A publisher that breaks the protocol, or sends what is too long, loses its connection and is named; it does not get
// memory for what it only announces.
func TestHostilePublisher(t *testing.T) {
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
	huge := string(binary.BigEndian.AppendUint64([]byte{flagLong}, 1<<62))
	with := func(at int, text string) string {
		out := slices.Clone(greeting)
		copy(out[at:], text)
		return string(out)
	}
	for _, c := range []struct{ sent, want string }{
		{"HTTP/1.1 400 Bad Request\r\n\r\n", "does not use ZMTP"},
		{with(10, "\x02"), "version 2"},
		{with(12, "CURVE"), `mechanism "CURVE"`},
		{string(greeting) + "\x00\x01x", "does not begin with a command"},
		{string(greeting) + "\x04\x06\x05ERROR", "refuses"},
		{string(greeting) + "\x04\x06\x05HELLO", `"HELLO"`},
		{string(greeting) + strings.Replace(ready, "PUB", "REP", 1), `"REP"`},
		{string(greeting) + "\x04\x0a\x05READY\x03abc", "end too early"},
		{string(greeting) + "\x04\x12\x05READY\x03abc\xff\xff\xff\xff1234", "end too early"},
		{string(greeting) + "\x06" + huge[1:], "too long"},
		{string(greeting) + ready + huge, "too long"},
		{string(greeting) + ready + "\xf0\x00", "unknown kind"},
		{string(greeting) + ready + strings.Repeat("\x01\x01k", 9) + "\x00\x01k", "too many frames"},
		{string(greeting) + ready + "\x01\x01k\x04\x01x", "command within"},
		{string(greeting) + ready + "\x01\x01k\x02\x00\x00\x00\x00\x00\x7f\xff\xff" + strings.Repeat("x", 1000), "EOF"},
	} {
		p, err := subscribe(t.Context(), replayed([]byte(c.sent)), "kv@")
		for err == nil {
			err = p.next(t.Context(), func([][]byte) {})
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.sent[max(0, len(c.sent)-50):], err, c.want)
		}
	}
	if n := len(largeMessages.held); n != 0 {
		t.Errorf("%d large messages are left", n)
	}
}

// The wait for a greeting ends with the context if nothing arrives.
func TestSilentPublisher(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.ReadFull(far, make([]byte, 64))
		cancel()
	}()
	if _, err := subscribe(ctx, near, "kv@"); err == nil {
		t.Error("it has subscribed")
	}
}

// testdata/libzmq.bin is what a PUB socket of libzmq 4.3.4 sent to this subscriber's side of the conversation:
// batches in arrays and in maps, packed by msgpack 1.0.3 for Python, the last one with 1,000 blocks.
func TestLibzmq(t *testing.T) {
	sent, err := os.ReadFile("testdata/libzmq.bin")
	if err != nil {
		t.Fatal(err)
	}
	p, err := subscribe(t.Context(), replayed(sent), "kv@")
	if err != nil {
		t.Fatal(err)
	}
	var all [][]routing.BlockEvent
	for err == nil {
		err = p.next(t.Context(), func(frames [][]byte) {
			if len(frames) != 3 || modelOf(string(frames[0])) != "m" ||
				binary.BigEndian.Uint64(frames[1]) != uint64(len(all)) {
				t.Errorf("%q", frames)
			}
			batch, err := readBatch(frames[2])
			if err != nil {
				t.Error(err)
			}
			all = append(all, batch)
		})
	}
	if len(all) != 4 || len(all[0]) != 1 || len(all[1]) != 1 || len(all[2]) != 2 || len(all[3]) != 8 {
		t.Fatalf("%d %+v", len(all), all)
	}
	first, second := &all[0][0], &all[1][0]
	if first.Blocks[0] != 7433709304730572777 || len(first.Blocks) != 2 || first.HasParent || first.BlockTokens != 16 ||
		len(first.Tokens) != 32 || first.Tokens[31] != 1031 || first.Slow || first.Adapter != "" {
		t.Errorf("%+v", first)
	}
	if second.Blocks[0] != 1<<63+7 || !second.Slow || second.Adapter != "adapter" || len(second.Extra) != 3 ||
		second.Extra[0] != (routing.BlockExtra{Salt: "tenant"}) || second.Extra[1] != (routing.BlockExtra{}) ||
		second.Extra[2].Other == 0 || second.Extra[2].Salt != "" || second.Window {
		t.Errorf("%+v", second)
	}
	if all[2][0].Kind != routing.BlocksRemoved || all[2][0].Blocks[0] != first.Blocks[1] ||
		all[2][1].Kind != routing.BlocksCleared {
		t.Errorf("%+v", all[2])
	}
	last := all[3][7]
	if !last.HasParent || last.Parent != all[3][6].Blocks[127] || len(last.Tokens) != 16*len(last.Blocks) {
		t.Errorf("%+v", last)
	}
}

// Batches that are wrong are errors.
func TestBadBatches(t *testing.T) {
	stored := func(fields ...any) []byte {
		return packed([]any{1.0, []any{append([]any{"BlockStored"}, fields...)}})
	}
	deep := append(append([]byte{0x92, 0xc0, 0x91, 0x92, 0xa1, 'x'}, bytes.Repeat([]byte{0x91}, 1<<20)...), 0xc0)
	for name, b := range map[string][]byte{
		"empty":               nil,
		"no batch":            packed(7),
		"no events":           packed([]any{1.0}),
		"something behind it": append(storing(1, codes("abcdefghijklmnop")...), 0),
		"too deep":            deep,
		"a length of 4 GiB":   {0x92, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"blocks of 4 GiB":     append([]byte{0x92, 0xc0, 0x91, 0x92, 0xab}, "BlockStored\xdd\xff\xff\xff\xff"...),
		"too few tokens":      stored([]int{1, 2}, nil, []int{1}, 16),
		"no block size":       stored([]int{1}, nil, []int{1}),
		"a negative token":    stored([]int{1}, nil, []any{-1}, 1),
		"a hash of text":      stored([]any{nil}, nil, []int{1}, 1),
		"a huge group":        stored([]int{1}, nil, []int{1}, 1, nil, "GPU", nil, nil, 1<<40),
		"no tag":              packed([]any{1.0, []any{[]any{}}}),
		"a tag of numbers":    packed([]any{1.0, []any{[]any{1}}}),
		"c1":                  {0xc1},
	} {
		if got, err := readBatch(b); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	got, err := readBatch(packed([]any{1.0, []any{[]any{"Later", []int{1}},
		[]any{"AllBlocksCleared", "new"}}, 0, "new"}))
	if err != nil || len(got) != 1 || got[0].Kind != routing.BlocksCleared {
		t.Errorf("what is new: %+v, %v", got, err)
	}
}

// Whatever a server sends is read without a panic, and what is read is consistent.
func FuzzBatch(f *testing.F) {
	f.Add(storing(1, codes("abcdefghijklmnop")...))
	f.Add(removing(1, 2))
	sent, err := os.ReadFile("testdata/libzmq.bin")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sent[115:500])
	c, err := routing.ParseConfig([]byte(`{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig",
		"plugins": [{"type": "precise-prefix-cache-scorer"}]}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := readBatch(b)
		if err != nil {
			return
		}
		state := routing.NewPool(c)
		state.SetEndpoints(endpoints(1))
		ref := state.Refs()[0]
		state.Following(ref)
		state.Message(ref, 0, true)
		blocks := 0
		for i := range all {
			e := &all[i]
			if n := len(e.Tokens); n > 0 && n != len(e.Blocks)*e.BlockTokens || len(e.Blocks) > mostBlockParts {
				t.Errorf("%d tokens, %d blocks of %d", n, len(e.Blocks), e.BlockTokens)
			}
			blocks += len(e.Blocks)
			state.Event(ref, "m", e)
		}
		if got := state.CacheState(ref).Blocks; got > blocks {
			t.Errorf("%d blocks of %d", got, blocks)
		}
	})
}

// Whatever a publisher sends ends in messages or an error.
func FuzzPublisher(f *testing.F) {
	sent, err := os.ReadFile("testdata/libzmq.bin")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sent[:400])
	f.Fuzz(func(t *testing.T, sent []byte) {
		p, err := subscribe(t.Context(), replayed(sent), "kv@")
		for err == nil {
			err = p.next(t.Context(), func(frames [][]byte) {
				if len(frames) == 0 || len(frames) > mostFrames {
					t.Errorf("%d frames", len(frames))
				}
			})
		}
	})
}
