package services

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// unhealthyAfter is how long a change may wait for its transaction (N0.13).
const unhealthyAfter = time.Minute

// health measures how long changes wait to be written, in each family (N2.59). It has its own lock, so that it responds
// while a transaction hangs.
type health struct {
	mu       sync.Mutex
	families map[corev1.IPFamily]*progress
	eligible bool // the node takes part in load balancing
}

// progress is the progress of one family; zero times mean that there is none.
type progress struct {
	queued, written, updated time.Time
}

func newHealth() *health { return &health{families: map[corev1.IPFamily]*progress{}} }

func (h *health) of(family string) *progress {
	p := h.families[corev1.IPFamily(family)]
	if p == nil {
		p = &progress{}
		h.families[corev1.IPFamily(family)] = p
	}
	return p
}

// queue records that there is something to write.
func (h *health) queue() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.families {
		if p.queued.IsZero() {
			p.queued = time.Now()
		}
	}
}

// begin records that everything so far is being written; done follows if that succeeds.
func (h *health) begin(family string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.of(family); p.written.IsZero() {
		p.written = p.queued
		if p.written.IsZero() {
			p.written = time.Now()
		}
		p.queued = time.Time{}
	}
}

func (h *health) done(family string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.of(family)
	p.written, p.updated = time.Time{}, time.Now()
}

func (h *health) setEligible(eligible bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = eligible
}

// healthStatus has the fields of kube-proxy's answers (N2.59).
type healthStatus struct {
	LastUpdated  time.Time                              `json:"lastUpdated"`
	CurrentTime  time.Time                              `json:"currentTime"`
	NodeEligible *bool                                  `json:"nodeEligible,omitempty"`
	Healthy      bool                                   `json:"healthy"`
	Status       map[corev1.IPFamily]familyHealthStatus `json:"status,omitempty"`
}

type familyHealthStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// status is unhealthy if a change waits for too long. A family that was never written is only listed
// if it is late.
func (h *health) status(now time.Time) (s healthStatus, eligible bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s = healthStatus{CurrentTime: now, Healthy: true, Status: map[corev1.IPFamily]familyHealthStatus{}}
	for family, p := range h.families { // any order: a map, and a maximum
		late := func(t time.Time) bool { return !t.IsZero() && now.Sub(t) >= unhealthyAfter }
		ok := !late(p.queued) && !late(p.written)
		s.Healthy = s.Healthy && ok
		if p.updated.IsZero() && ok {
			continue
		}
		s.Status[family] = familyHealthStatus{LastUpdated: p.updated, Healthy: ok}
		if p.updated.After(s.LastUpdated) {
			s.LastUpdated = p.updated
		}
	}
	return s, h.eligible
}

func (h *health) healthy() bool {
	s, _ := h.status(time.Now())
	return s.Healthy
}

// handler answers /healthz, which is also unhealthy while the node is being taken out of the cluster
// (N2.60), and /livez.
func (h *health) handler(m *metrics) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, s healthStatus, ok bool) (code string) {
		status := http.StatusOK
		if !ok {
			status = http.StatusServiceUnavailable
		} else {
			s.LastUpdated = s.CurrentTime
		}
		writeJSON(w, status, s)
		return strconv.Itoa(status)
	}
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s, eligible := h.status(time.Now())
		s.NodeEligible = &eligible
		m.healthz.WithLabelValues(answer(w, s, s.Healthy && eligible)).Inc()
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		s, _ := h.status(time.Now())
		m.livez.WithLabelValues(answer(w, s, s.Healthy)).Inc()
	})
	return mux
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	out, err := json.Marshal(body)
	if err == nil {
		_, err = w.Write(out)
	}
	_ = err // the client has gone
}

// newHTTPServer returns a server for short requests of untrusted clients, with tight limits on time and size.
func newHTTPServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10}
}

// maxHealthConns bounds the connections of one listener; further ones wait.
const maxHealthConns = 256

// serveHealth answers /healthz and /livez until ctx is done.
func (p *Proxy) serveHealth(ctx context.Context, group *sync.WaitGroup, l net.Listener) {
	server := newHTTPServer(p.health.handler(p.metrics))
	group.Go(func() { _ = server.Serve(limit(l)) })
	group.Go(func() {
		<-ctx.Done()
		_ = server.Close()
	})
}
