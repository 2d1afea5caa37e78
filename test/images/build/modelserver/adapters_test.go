package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAdapters: an adapter waits while requests run with all slots, is loaded once as long as it keeps its slot, and
// replaces the one that has not been used for the longest time. vLLM's series says so.
func TestAdapters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdapters([]string{"a", "b", "c"}, 2, time.Second)
		acquire := func(model string, loads bool) {
			t.Helper()
			if missing, err := a.acquire(t.Context(), model); err != nil || missing != loads {
				t.Fatalf("%s: %v %v", model, missing, err)
			}
		}
		shows := func(running, waiting string) {
			t.Helper()
			want := `max_lora="2",running_lora_adapters="` + running + `",waiting_lora_adapters="` + waiting + `"}`
			if got := a.metrics(); !strings.Contains(got, want) {
				t.Fatalf("%s, not %s", got, want)
			}
		}
		acquire("base", false) // no adapter, no slot
		acquire("a", true)
		acquire("a", false)
		acquire("b", true)
		shows("a,b", "")
		got := make(chan bool)
		go func() {
			missing, err := a.acquire(t.Context(), "c")
			got <- missing && err == nil
		}()
		synctest.Wait()
		shows("a,b", "c")
		a.release("base")
		a.release("a")
		synctest.Wait()
		shows("a,b", "c") // one more request runs with it
		a.release("a")
		if !<-got {
			t.Fatal("c was not loaded")
		}
		shows("b,c", "")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := a.acquire(ctx, "a"); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		shows("b,c", "")
		a.release("c")
		a.release("b")
		acquire("c", false) // kept its slot, so b has not been used for longer
		acquire("a", true)
		a.release("a")
		a.release("c")
		acquire("b", true)
		if got := a.metrics(); !strings.HasSuffix(got, "adapters_loaded_total 5\n") {
			t.Fatal(got)
		}
	})
}

// TestOwnCache: prompts of an adapter share no cache with those of the base model.
func TestOwnCache(t *testing.T) {
	c, prompt := newCache(100), strings.Repeat("word ", 200)
	for i, want := range []int{0, 3, 0, 3} {
		if got := c.hit([]string{"", "", "a", "a"}[i], prompt); got != want {
			t.Errorf("%d: %d blocks, not %d", i, got, want)
		}
	}
}
