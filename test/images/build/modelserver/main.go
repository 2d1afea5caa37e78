// modelserver answers as a model server without a model: OpenAI's completions, with the name of the model that it was
// asked for, and vLLM's metrics. POST /waiting?n=10 makes it say that so many requests wait.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
)

func main() {
	var waiting, running atomic.Int64
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "vllm:num_requests_waiting %d\nvllm:num_requests_running %d\nvllm:kv_cache_usage_perc 0\n",
			waiting.Load(), running.Load())
	})
	http.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("POST /waiting", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.FormValue("n"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		waiting.Store(int64(n))
	})
	http.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Add(-1)
		var in struct {
			Model string `json:"model"`
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"model": in.Model,
			"usage": map[string]int{"prompt_tokens": 1, "completion_tokens": 1}})
	})
	if err := http.ListenAndServe(":8000", nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
