package stream

import (
	"errors"
	"net/http"
	"testing"
)

// L8.27: /healthz returns ok, or which check failed; only the path of the check shows the reason.
func TestHealthz(t *testing.T) {
	w := newWorld(t)
	ask := func(path, want string, code int) {
		t.Helper()
		status, got := w.get("api", path)
		if got != want || status != code {
			t.Errorf("%s: %d %q, want %d %q", path, status, got, code, want)
		}
	}
	ask("/healthz", "ok", http.StatusOK)
	ask("/healthz?verbose", "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n", http.StatusOK)
	ask("/healthz/syncloop", "ok", http.StatusOK)
	ask("/healthz/nothing", "404 page not found\n", http.StatusNotFound)
	w.change(func() { w.sick = errors.New("sync Loop took longer than expected") })
	ask("/healthz", "[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n",
		http.StatusInternalServerError)
	ask("/healthz?exclude=syncloop", "ok", http.StatusOK)
	ask("/healthz/ping", "ok", http.StatusOK)
	ask("/healthz/syncloop", "internal server error: sync Loop took longer than expected\n",
		http.StatusInternalServerError)
}
