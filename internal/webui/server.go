package webui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"carob/internal/core/explain"
)

// Config is what a page shows, and how its details are read.
type Config struct {
	Client    kubernetes.Interface
	Dynamic   dynamic.Interface
	Namespace string // empty: all
	Cluster   string // the address of the API server
	Version   string // of carob
	// Explain explains an object, as `carob explain` does.
	Explain func(ctx context.Context, kind, namespace, name string) (explain.Lines, error)
	// Chart returns what `carob timeline` draws of a pod, as a value that JSON can have.
	Chart func(ctx context.Context, namespace, name string) (any, error)
}

// Limits of clients.
const (
	mostPages   = 16
	mostDetails = 4 // that are read at once; others wait
	headerTime  = 10 * time.Second
	writeTime   = 30 * time.Second // of one message
	detailTime  = 20 * time.Second
	gathering   = 100 * time.Millisecond // changes that are sent together
	heartbeat   = 15 * time.Second
	mostHeader  = 16 << 10
)

//go:embed static
var static embed.FS

// Server serves the page.
type Server struct {
	cfg     Config
	state   *state
	secret  string
	host    string // HOST:PORT of the listener
	port    string
	details chan struct{}
}

// New makes a server; Run serves.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, state: newState(), secret: rand.Text(), details: make(chan struct{}, mostDetails)}
}

// URL is the address of the page on a listener, with the secret.
func (s *Server) URL(l net.Listener) string { return "http://" + l.Addr().String() + "/#" + s.secret }

// Run serves until ctx ends. It closes the listener.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	s.host = l.Addr().String()
	_, s.port, _ = net.SplitHostPort(s.host)
	run := func(f func(context.Context)) { all.Go(func() { f(ctx) }) }
	s.watchAll(run)
	run(func(ctx context.Context) { s.followNodes(ctx, run) })
	run(s.renderLoop)
	server := s.server(ctx)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// server has no time limit for whole requests: it would end streams, too.
func (s *Server) server(ctx context.Context) *http.Server {
	return &http.Server{Handler: s.Handler(), ReadHeaderTimeout: headerTime, MaxHeaderBytes: mostHeader,
		IdleTimeout: time.Minute, ErrorLog: log.New(quiet{}, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx }}
}

// quiet drops what http.Server logs about clients.
type quiet struct{}

func (quiet) Write(b []byte) (int, error) { return len(b), nil }

// renderLoop makes rows while there is a page.
func (s *Server) renderLoop(ctx context.Context) {
	refresh := time.NewTicker(refreshing)
	defer refresh.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-refresh.C:
			s.state.tick()
			continue
		case <-s.state.wake:
		}
		s.state.mu.Lock()
		if len(s.state.pages) > 0 { // the first page wakes it again
			s.state.render(time.Now())
		}
		s.state.mu.Unlock()
		if sleep(ctx, gathering) != nil { // what changes meanwhile is made together
			return
		}
	}
}

// Handler serves the page and its data.
func (s *Server) Handler() http.Handler {
	files, _ := fs.Sub(static, "static") // it is embedded
	mux := http.NewServeMux()
	mux.Handle("GET /api/stream", s.private(s.stream))
	mux.Handle("GET /api/explain", s.private(s.explain))
	mux.Handle("GET /api/chart", s.private(s.chart))
	for _, name := range []string{"style.css", "page.js", "rows.js", "detail.js", "pools.js", "icon.svg"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, files, name)
		})
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		text, _ := fs.ReadFile(files, "index.html") // it is embedded
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(text) // an error means that the client has left
	})
	return s.guarded(mux)
}

// guarded refuses requests that a page of another origin may have made, and sets the headers of all answers.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
			"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'")
		h.Set("X-Frame-Options", "DENY")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		site := r.Header.Get("Sec-Fetch-Site")
		switch {
		case r.Host != s.host && r.Host != "localhost:"+s.port:
			// A name that an attacker controls may lead to this address (DNS rebinding).
			http.Error(w, "this server answers only for http://"+s.host, http.StatusMisdirectedRequest)
		case r.Header.Get("Origin") != "" && r.Header.Get("Origin") != "http://"+r.Host:
			http.Error(w, "requests of other origins are refused", http.StatusForbidden)
		case site != "" && site != "same-origin" && site != "none" && strings.HasPrefix(r.URL.Path, "/api/"):
			http.Error(w, "requests of other sites are refused", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// private serves clients that send the secret.
func (s *Server) private(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(given), []byte(s.secret)) != 1 {
			http.Error(w, "open the whole address that `carob dashboard` has printed, with the part behind #",
				http.StatusUnauthorized)
			return
		}
		next(w, r)
	})
}

// message is a line of the stream.
type message struct {
	Reset  bool              `json:"reset,omitempty"` // the rows are all there are
	Rows   []json.RawMessage `json:"rows,omitempty"`
	Gone   []string          `json:"gone,omitempty"` // IDs of rows
	Status *status           `json:"status,omitempty"`
}

// status is about the connection to the cluster, and what the page cannot show.
type status struct {
	Cluster   string   `json:"cluster"`
	Version   string   `json:"version"`
	Namespace string   `json:"namespace"`
	Lost      string   `json:"lost,omitempty"`  // why the API server does not answer
	Since     int64    `json:"since,omitempty"` // milliseconds
	Notes     []string `json:"notes,omitempty"`
	Loading   []string `json:"loading,omitempty"` // kinds that have not been read yet
}

// stream sends all rows, and then what changes, until the client leaves.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	p := &page{rows: map[string]bool{}, status: true, wake: make(chan struct{}, 1)}
	poke(p.wake)
	if !s.state.join(p) {
		http.Error(w, "too many pages are open", http.StatusTooManyRequests)
		return
	}
	defer s.state.leave(p)
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	first := true
	alive := time.NewTicker(heartbeat)
	defer alive.Stop()
	for {
		line := []byte("\n")
		select {
		case <-r.Context().Done():
			return
		case <-alive.C:
		case <-p.wake:
			m := s.state.next(p, &s.cfg)
			m.Reset, first = first, false
			var err error
			if line, err = json.Marshal(m); err != nil {
				return
			}
			line = append(line, '\n')
		}
		_ = control.SetWriteDeadline(time.Now().Add(writeTime)) // not every ResponseWriter has one
		if _, err := w.Write(line); err != nil || control.Flush() != nil {
			return
		}
		if sleep(r.Context(), gathering) != nil { // what changes meanwhile is sent together
			return
		}
	}
}

// detail limits how many details are read at once.
func (s *Server) detail(w http.ResponseWriter, r *http.Request, read func(ctx context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), detailTime)
	defer cancel()
	select {
	case s.details <- struct{}{}:
		defer func() { <-s.details }()
	case <-ctx.Done():
		http.Error(w, "too many details are read at once", http.StatusServiceUnavailable)
		return
	}
	answer, err := read(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	text, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
	_, _ = w.Write(text) // an error means that the client has left
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.detail(w, r, func(ctx context.Context) (any, error) {
		return s.cfg.Explain(ctx, q.Get("kind"), q.Get("namespace"), q.Get("name"))
	})
}

func (s *Server) chart(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.detail(w, r, func(ctx context.Context) (any, error) {
		return s.cfg.Chart(ctx, q.Get("namespace"), q.Get("name"))
	})
}
