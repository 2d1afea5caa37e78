// modelserver answers as a model server without a model: OpenAI's completions, with the name of the model that it was
// asked for, and vLLM's metrics. It takes as long as a server that computes one prompt after the other, without the
// part that it has in its cache, and that loads LoRA adapters; by default it takes no time. POST /waiting?n=10 makes it
// say that so many requests wait.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	var s server
	listen := flag.String("listen", ":8000", "where it listens")
	flag.DurationVar(&s.overhead, "overhead", 0, "time for each prompt")
	flag.DurationVar(&s.perToken, "per-token", 0, "time for a token of a prompt that is not in the cache")
	flag.DurationVar(&s.each, "each", 0, "time for a token of an answer")
	flag.DurationVar(&s.loading, "loading", 0, "how long after its start it is not healthy")
	blocks := flag.Int("blocks", 0, "blocks of 64 tokens that the cache has")
	names := flag.String("adapters", "", "names of LoRA adapters, by comma")
	slots := flag.Int("max-loras", 1, "adapters that can be loaded at once")
	load := flag.Duration("load", 0, "time to load an adapter")
	flag.Parse()
	if *slots < 1 {
		fmt.Fprintln(os.Stderr, "-max-loras must be at least 1")
		os.Exit(2)
	}
	s.began = time.Now()
	s.cache = newCache(*blocks)
	s.adapters = newAdapters(strings.FieldsFunc(*names, func(r rune) bool { return r == ',' }), *slots, *load)
	http.HandleFunc("/metrics", s.metrics)
	http.HandleFunc("/health", s.health)
	http.HandleFunc("POST /waiting", s.setWaiting)
	http.HandleFunc("POST /v1/completions", s.complete)
	if err := http.ListenAndServe(*listen, nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type server struct {
	overhead, perToken, each, loading time.Duration
	began                             time.Time

	shown, waiting, running atomic.Int64
	computes                sync.Mutex // one prompt after the other
	cache                   *cache
	adapters                *adapters
}

func (s *server) metrics(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintf(w, "vllm:num_requests_waiting %d\nvllm:num_requests_running %d\nvllm:kv_cache_usage_perc 0\n"+
		"vllm:cache_config_info{block_size=\"64\",num_gpu_blocks=\"%d\"} 1\n%s",
		s.shown.Load()+s.waiting.Load(), s.running.Load(), s.cache.most, s.adapters.metrics())
}

func (s *server) health(w http.ResponseWriter, _ *http.Request) {
	if time.Since(s.began) < s.loading {
		http.Error(w, "loading the model", http.StatusServiceUnavailable)
	}
}

func (s *server) setWaiting(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.FormValue("n"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.shown.Store(int64(n))
}

// value reads the first field with this name into v, without reading the rest.
func value(body []byte, name string, v any) error {
	_, rest, ok := bytes.Cut(body, []byte(`"`+name+`":`))
	if !ok {
		return nil
	}
	return json.NewDecoder(bytes.NewReader(rest)).Decode(v)
}

func (s *server) complete(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil && (len(body) == 0 || body[0] != '{') {
		err = fmt.Errorf("the body is not JSON object")
	}
	var model, prompt string
	stream, tokens := false, 1
	for name, v := range map[string]any{"model": &model, "stream": &stream, "max_tokens": &tokens} {
		if err == nil {
			err = value(body, name, v)
		}
	}
	if err == nil && s.perToken > 0 {
		err = value(body, "prompt", &prompt)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := s.prefill(r.Context(), model, prompt); err != nil {
		return // the client is gone
	}
	defer s.adapters.release(model)
	s.running.Add(1)
	defer s.running.Add(-1)
	if !stream {
		time.Sleep(time.Duration(tokens) * s.each)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"model": model,
			"usage": map[string]int{"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 1 + tokens}})
		return
	}
	pause, _ := time.ParseDuration(r.FormValue("pause")) // after the first token; else none
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range tokens {
		fmt.Fprintf(w, "data: {\"model\":%q,\"choices\":[{\"text\":\"x\"}]}\n\n", model)
		_ = http.NewResponseController(w).Flush()
		if i == 0 {
			select {
			case <-time.After(pause):
			case <-r.Context().Done():
				return
			}
		}
		time.Sleep(s.each)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// prefill takes the time of a prompt, after its adapter has a slot; the caller releases the adapter. The error is that
// of a client that did not wait.
func (s *server) prefill(ctx context.Context, model, prompt string) error {
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	missing, err := s.adapters.acquire(ctx, model)
	if err != nil || s.overhead == 0 && s.perToken == 0 && !missing {
		return err
	}
	s.computes.Lock()
	defer s.computes.Unlock()
	if missing {
		time.Sleep(s.adapters.load)
	}
	salt := "" // the cache of an adapter is its own
	if s.adapters.known[model] {
		salt = model
	}
	uncached := max(len(prompt)/4-64*s.cache.hit(salt, prompt), 0)
	time.Sleep(s.overhead + time.Duration(uncached)*s.perToken)
	return nil
}
