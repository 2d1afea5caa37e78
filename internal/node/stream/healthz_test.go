package stream

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

// L8.27: /healthz returns ok, or which check failed; only the path of the check shows the reason.
func TestHealthz(t *testing.T) {
	w := newWorld(t)
	expect := func(path, want string, code int) {
		t.Helper()
		status, got := w.get("api", path)
		if got != want || status != code {
			t.Errorf("%s: %d %q, want %d %q", path, status, got, code, want)
		}
	}
	expect("/healthz", "ok", http.StatusOK)
	expect("/healthz?verbose", "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n", http.StatusOK)
	expect("/healthz/syncloop", "ok", http.StatusOK)
	expect("/healthz/nothing", "404 page not found\n", http.StatusNotFound)
	w.change(func() { w.syncErr = errors.New("sync Loop took longer than expected") })
	expect("/healthz", "[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n",
		http.StatusInternalServerError)
	expect("/healthz?exclude=syncloop", "ok", http.StatusOK)
	expect("/healthz/ping", "ok", http.StatusOK)
	expect("/healthz/syncloop", "internal server error: sync Loop took longer than expected\n",
		http.StatusInternalServerError)
}

// S12.7: /metrics/slis counts the results of each check of /healthz, also when its text is not printed.
func TestSLIs(t *testing.T) {
	w := newWorld(t)
	health := func(code int) {
		t.Helper()
		if status, got := w.get("api", "/healthz"); status != code {
			t.Fatalf("%d: %s", status, got)
		}
	}
	shows := func(lines ...string) {
		t.Helper()
		status, page := w.get("api", "/metrics/slis")
		for _, line := range lines {
			if status != http.StatusOK || !strings.Contains(page, line+"\n") {
				t.Errorf("%d: no %s in\n%s", status, line, page)
			}
		}
	}
	health(http.StatusOK)
	health(http.StatusOK)
	w.change(func() { w.syncErr = errors.New("no") })
	health(http.StatusInternalServerError)
	shows(`kubernetes_healthcheck{name="ping",type="healthz"} 1`, `kubernetes_healthcheck{name="syncloop",type="healthz"} 0`,
		`kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 3`,
		`kubernetes_healthchecks_total{name="syncloop",status="success",type="healthz"} 2`,
		`kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"} 1`)
	w.change(func() { w.syncErr = nil })
	health(http.StatusOK)
	shows(`kubernetes_healthcheck{name="syncloop",type="healthz"} 1`)
}
