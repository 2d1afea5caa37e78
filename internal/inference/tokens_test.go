package inference

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"carob/internal/base/testwait"
	"carob/internal/core/routing"
)

func tokensOf(t *testing.T, p *Pool, path, body string) []uint64 {
	t.Helper()
	r := &routing.Request{Model: "alias", Target: "m"}
	p.Tokens(t.Context(), r, &Prompt{Path: path, Body: []byte(body)})
	return r.Blocks
}

// The server is called as vLLM requires: with the fields that affect the tokens, and the server's name of the model.
// Other bodies cause no call; tokens in a request are used as they are.
func TestTokens(t *testing.T) {
	p, all := preciseFleet(t, 1)
	if tokensOf(t, p, "/v1/completions", `{"prompt": "abcdefghijklmnop"}`) != nil || len(all[0].questions()) > 0 {
		t.Error("tokens are requested while there is nothing to compare with")
	}
	all[0].publish(0, storing(1, codes("abcdefghijklmnop")...))
	testwait.For(t, "the events are taken", func() bool { return p.cache(0).Blocks == 1 })
	for _, c := range []struct {
		path, body, want string
		blocks           int
	}{
		{"/v1/completions", `{"model": "x", "prompt": "abcdefghijklmnopq", "max_tokens": 4, "add_special_tokens": false}`,
			`{"model":"m","prompt":"abcdefghijklmnopq","add_special_tokens":false}`, 1},
		{"/v1/completions", `{"prompt": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`, "", 1},
		{"/v1/completions", `{"prompt": ["a", "b"]}`, "", 0},
		{"/v1/completions", `{"prompt": ""`, "", 0},
		{"/v1/chat/completions", `{"messages": [{"role": "user", "content": "a"}], "tools": [1], "prompt": "x", "n": 2,
			"chat_template_kwargs": {"think": true}}`,
			`{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[1],"chat_template_kwargs":{"think":true}}`, 0},
		{"/v1/messages", `{"messages": []}`, "", 0},
		{"/v1/embeddings", `{"input": "a"}`, "", 0},
	} {
		before := len(all[0].questions())
		blocks := tokensOf(t, p, c.path, c.body)
		requests := strings.Join(all[0].questions()[before:], "; ")
		if len(blocks) != c.blocks || requests != c.want {
			t.Errorf("%s: %d blocks, requests %s", c.body, len(blocks), requests)
		}
	}
}

// A server that does not answer, or with nonsense, costs a bounded time, is left alone for a while, and is named; what
// was sent where decides meanwhile.
func TestNoTokens(t *testing.T) {
	p, all := preciseFleet(t, 2)
	for i, w := range all {
		w.publish(0, storing(1, codes("abcdefghijklmnop")...))
		testwait.For(t, "the events are taken", func() bool { return p.cache(i).Blocks == 1 })
	}
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	n := 0
	for _, c := range []struct {
		name     string
		answer   http.HandlerFunc
		want     string
		requests int // of servers
	}{
		{"404", http.NotFound, "404", 2},
		{"500", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "x", http.StatusInternalServerError)
		}, "500", 2},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }, "invalid", 2},
		{"negative", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"tokens": [-1]}`) },
			"number", 2},
		{"none", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) }, "none", 2},
		{"never", func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-never:
			case <-r.Context().Done():
			}
		}, "deadline", 1},
		{"endless", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"tokens": [`+strings.Repeat("1,", mostTokenPage/2)+"1]}")
		}, "more than", 2},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/metrics", http.StatusTemporaryRedirect)
		}, "307", 2},
	} {
		p.mu.Lock()
		p.tokens = newTokenizer()
		if c.name != "never" {
			p.tokens.patience = time.Minute
		}
		p.mu.Unlock()
		for _, w := range all {
			w.mu.Lock()
			w.tokens, w.tokenized = c.answer, nil
			w.mu.Unlock()
		}
		requests := func() int { return len(all[0].questions()) + len(all[1].questions()) }
		for range 3 {
			n++
			if b := tokensOf(t, p, "/v1/completions", fmt.Sprintf(`{"prompt": "abcdefghijklmnop%d"}`, n)); b != nil {
				t.Errorf("%s: %d blocks", c.name, len(b))
			}
		}
		if got := p.TokenProblem(); requests() < c.requests || requests() > 2 || !strings.Contains(got, c.want) {
			t.Errorf("%s: %d requests; %s", c.name, requests(), got)
		}
	}
	// A prompt that the server refuses does not count as a failure of the server.
	p.mu.Lock()
	p.tokens = newTokenizer()
	p.tokens.patience = time.Minute
	p.mu.Unlock()
	for _, w := range all {
		w.mu.Lock()
		w.tokens = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "too long", http.StatusBadRequest) }
		w.mu.Unlock()
	}
	if tokensOf(t, p, "/v1/completions", `{"prompt": "bad"}`) != nil || p.TokenProblem() != "" {
		t.Error(p.TokenProblem())
	}
}

// What is remembered of prompts is bounded.
func TestTokenMemory(t *testing.T) {
	k := newTokenizer()
	blocks := make([]uint64, 1000)
	for i := range 3000 {
		k.cache([32]byte{byte(i), byte(i >> 8)}, blocks)
	}
	if k.hashes > mostHashes || len(k.known) != k.used.Len() || k.used.Len() != mostHashes/1000 {
		t.Errorf("%d blocks of %d prompts", k.hashes, k.used.Len())
	}
	if k.cached([32]byte{byte(2999 & 255), byte(2999 >> 8)}) == nil || k.cached([32]byte{}) != nil {
		t.Error("the one used last is not there, or the first one is")
	}
}
