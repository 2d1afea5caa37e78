package inference

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"carob/internal/core/routing"
)

// KV events contain tokens, and only the model servers have the tokenizer: the pool calls their /tokenize, as vLLM
// serves it. A request waits at most tokenTime for it; without tokens the earlier prompts of each server decide, as
// without events.

// Limits of requests for tokens.
const (
	tokenTime         = 300 * time.Millisecond
	mostTokenRequests = 32              // requests of a pool at once; further prompts stay without tokens
	mostTokenPage     = 8 << 20         // bytes of a response
	tokenPause        = 5 * time.Second // pause for a server that did not respond
	missingPause      = time.Minute     // pause for a server without /tokenize
	mostPrompts       = 4096            // cached responses
	mostHashes        = 1 << 20         // bytes of all of them
)

// Prompt is a request whose tokens are needed.
type Prompt struct {
	Path string // of the request
	Body []byte
	Salt string // cache_salt
}

// tokenizer calls the servers of a pool. It is made with the first request that needs it.
type tokenizer struct {
	transport http.RoundTripper
	slots     chan struct{}
	patience  time.Duration

	mu      sync.Mutex
	turn    int
	paused  map[netip.AddrPort]time.Time
	problem error
	known   map[[sha256.Size]byte]*list.Element
	used    *list.List // of *prompt, the one used last in front
	hashes  int
}

type prompt struct {
	key    [sha256.Size]byte
	blocks []uint64
}

func newTokenizer() *tokenizer {
	d := net.Dialer{Timeout: scrapeTimeout}
	return &tokenizer{transport: &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 8,
		IdleConnTimeout: 30 * time.Second, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10},
		slots: make(chan struct{}, mostTokenRequests), patience: tokenTime, paused: map[netip.AddrPort]time.Time{},
		known: map[[sha256.Size]byte]*list.Element{}, used: list.New()}
}

// question is the body for /tokenize: the fields of the request that affect its tokens.
type question struct {
	Model     string          `json:"model"`
	Prompt    json.RawMessage `json:"prompt,omitempty"`
	Messages  json.RawMessage `json:"messages,omitempty"`
	Tools     json.RawMessage `json:"tools,omitempty"`
	Template  json.RawMessage `json:"chat_template,omitempty"`
	Arguments json.RawMessage `json:"chat_template_kwargs,omitempty"`
	Generate  json.RawMessage `json:"add_generation_prompt,omitempty"`
	Continue  json.RawMessage `json:"continue_final_message,omitempty"`
	Special   json.RawMessage `json:"add_special_tokens,omitempty"`
}

var errNoPrompt = errors.New("requests of this API have no prompt that can be compared with KV events")

// tokenizeBody returns the body of a call of /tokenize for a request, or the tokens if the request contains them.
func (q *Prompt) tokenizeBody(model string) (text []byte, tokens []uint32, err error) {
	chat := strings.HasSuffix(q.Path, "/chat/completions")
	if !chat && !strings.HasSuffix(q.Path, "/completions") {
		return nil, nil, errNoPrompt
	}
	var body question
	if err := json.Unmarshal(q.Body, &body); err != nil {
		return nil, nil, err
	}
	if body.Model = model; chat {
		body.Prompt = nil
		if body.Messages == nil {
			return nil, nil, errNoPrompt
		}
	} else {
		body = question{Model: model, Prompt: body.Prompt, Special: body.Special}
		if len(body.Prompt) == 0 {
			return nil, nil, errNoPrompt
		}
		if body.Prompt[0] == '[' { // tokens, or several prompts
			if json.Unmarshal(body.Prompt, &tokens) != nil {
				return nil, nil, errNoPrompt
			}
			return nil, tokens, nil
		}
	}
	text, err = json.Marshal(&body)
	return text, nil, err
}

// Tokens finds the blocks of a prompt (Request.Blocks), if KV events are in use: it gets the tokens from a model
// server. It changes nothing if they do not arrive in time.
func (p *Pool) Tokens(ctx context.Context, r *routing.Request, q *Prompt) {
	p.mu.Lock()
	if p.closed || p.config.Precise() == nil {
		p.mu.Unlock()
		return
	}
	h := p.state.TokenHasher()
	if h.Block() == 0 { // no server has sent events: nothing to compare with
		p.mu.Unlock()
		return
	}
	if p.tokens == nil {
		p.tokens = newTokenizer()
	}
	t := p.tokens
	var servers []netip.AddrPort
	for _, ref := range p.state.Refs() {
		if e := p.state.Endpoint(ref); e.Ready && !e.Draining && p.state.CacheState(ref).Received {
			servers = append(servers, e.Address)
		}
	}
	p.mu.Unlock()
	model := r.Target
	if model == "" {
		model = r.Model
	}
	text, tokens, err := q.tokenizeBody(model)
	switch {
	case err != nil:
		return // the server of the request will report the error
	case tokens != nil:
		r.Blocks = h.Hash(model, q.Salt, tokens)
		return
	}
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(h.Block())) //nolint:gosec // not negative
	sum := sha256.New()
	sum.Write(size[:])
	binary.LittleEndian.PutUint64(size[:], uint64(len(q.Salt)))
	sum.Write(size[:])
	sum.Write([]byte(q.Salt))
	sum.Write(text)
	key := [sha256.Size]byte(sum.Sum(nil))
	if r.Blocks = t.cached(key); r.Blocks != nil {
		return
	}
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	default:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	for range 2 { // a second server, if the first one fails at once
		at, ok := t.next(servers, time.Now())
		if !ok {
			return
		}
		tokens, err := t.tokenize(ctx, at, text)
		if t.answered(at, err, time.Now()); err == nil {
			r.Blocks = h.Hash(model, q.Salt, tokens)
			t.cache(key, r.Blocks)
			return
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// next returns the server to call next.
func (t *tokenizer) next(servers []netip.AddrPort, now time.Time) (netip.AddrPort, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range servers {
		t.turn++
		at := servers[t.turn%len(servers)]
		if until, ok := t.paused[at]; ok && now.Before(until) {
			continue
		}
		delete(t.paused, at)
		return at, true
	}
	return netip.AddrPort{}, false
}

// refusal is a response without tokens.
type refusal int

func (e refusal) Error() string { return fmt.Sprintf("the answer is %d", int(e)) }

// answered records whether a server has responded.
func (t *tokenizer) answered(at netip.AddrPort, err error, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	status, refused := errors.AsType[refusal](err)
	switch {
	case err == nil:
		t.problem = nil
		return
	case refused && (status == http.StatusBadRequest || status == http.StatusUnprocessableEntity):
		return // this prompt is invalid: the server of the request reports it
	case errors.Is(err, context.Canceled):
		return // the client has gone
	}
	t.problem = err
	pause := tokenPause
	if refused && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed ||
		status == http.StatusNotImplemented) {
		pause = missingPause
	}
	for other, until := range t.paused { // of removed servers
		if now.After(until) {
			delete(t.paused, other)
		}
	}
	t.paused[at] = now.Add(pause)
}

// tokenize calls one server.
func (t *tokenizer) tokenize(ctx context.Context, at netip.AddrPort, text []byte) ([]uint32, error) {
	url := "http://" + at.String() + "/tokenize"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := t.transport.RoundTrip(req) // follows no redirect
	if err != nil {
		return nil, fmt.Errorf("get tokens from %s: %w", at, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get tokens from %s: %w", at, refusal(res.StatusCode))
	}
	page, err := io.ReadAll(io.LimitReader(res.Body, mostTokenPage+1))
	if err != nil {
		return nil, fmt.Errorf("get tokens from %s: %w", at, err)
	}
	if len(page) > mostTokenPage {
		return nil, fmt.Errorf("get tokens from %s: the answer has more than %d bytes", at, mostTokenPage)
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal(page, &answer); err != nil {
		return nil, fmt.Errorf("get tokens from %s: %w", at, err)
	}
	if len(answer.Tokens) == 0 {
		return nil, fmt.Errorf("get tokens from %s: the answer has none", at)
	}
	return answer.Tokens, nil
}

func (t *tokenizer) cached(key [sha256.Size]byte) []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.known[key]
	if e == nil {
		return nil
	}
	t.used.MoveToFront(e)
	if p, ok := e.Value.(*prompt); ok {
		return p.blocks
	}
	return nil
}

func (t *tokenizer) cache(key [sha256.Size]byte, blocks []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known[key] != nil || len(blocks) == 0 {
		return
	}
	t.known[key] = t.used.PushFront(&prompt{key, blocks})
	t.hashes += len(blocks)
	for t.used.Len() > mostPrompts || t.hashes > mostHashes {
		if p, ok := t.used.Remove(t.used.Back()).(*prompt); ok {
			delete(t.known, p.key)
			t.hashes -= len(p.blocks)
		}
	}
}

// trouble is why the last call returned no tokens; nil: it did.
func (t *tokenizer) trouble() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.problem
}

// close ends the connections.
func (t *tokenizer) close() {
	if t == nil {
		return
	}
	if c, ok := t.transport.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
