package backoff

import (
	"testing"
	"time"
)

func TestDelay(t *testing.T) {
	e := Exponential{Initial: time.Second, Max: 10 * time.Second}
	want := []time.Duration{0, 1, 2, 4, 8, 10, 10}
	for n, w := range want {
		if got := e.Delay(n); got != w*time.Second {
			t.Errorf("after %d failures: %v, want %v", n, got, w*time.Second)
		}
	}
	if got := e.Delay(1 << 20); got != e.Max {
		t.Errorf("after very many: %v", got)
	}
	if got := (Exponential{Initial: time.Minute, Max: time.Second}).Delay(1); got != time.Second {
		t.Errorf("the cap holds from the first: %v", got)
	}
}
