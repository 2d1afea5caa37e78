package namespace

import (
	"testing"
	"time"
)

// While a finalizer of another controller blocks a namespace, checks become less frequent.
func TestRecheckDelay(t *testing.T) {
	for waited, want := range map[time.Duration]time.Duration{
		-time.Second: time.Second, 0: time.Second, 9 * time.Second: time.Second, 30 * time.Second: 3 * time.Second,
		time.Hour: 8 * time.Second,
	} {
		if got := recheckDelay(waited); got != want {
			t.Errorf("after %v: %v, want %v", waited, got, want)
		}
	}
}
