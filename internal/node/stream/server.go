// Package stream is the HTTPS server of the node agent: logs, exec, attach and
// port-forward for the API server, and metrics and statistics (the subset of the kubelet's API that kubectl and the API
// server use). It serves only clients whose certificate names an allowed user, and, if other machines can reach it,
// those that the API authorizes (access.go). It must never decide anything about pods; it reads them through Pods.
//
// Contract: docs/spec/pod-lifecycle.md.
package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/node/summary"
	"carob/internal/runtime"
)

// Bounds of a connection. Requests have no time limit: logs may be followed for days.
const (
	headerTimeout = 30 * time.Second
	idleTimeout   = 90 * time.Second
	stopTimeout   = time.Second // for short requests, when the server stops
)

// Pods are the pods on this node as the server reads them; the agent implements it.
type Pods interface {
	// Pod returns the pod with its newest status (not older than the runtime's), or nil.
	Pod(namespace, name string) *corev1.Pod
	// List returns all pods with their newest status.
	List() []*corev1.Pod
	// SandboxID is the id of the ready sandbox of the pod, or empty.
	SandboxID(uid types.UID) string
	// ContainerID is the runtime's id of the running instance of the container, or empty.
	ContainerID(uid types.UID, container string) string
	// Changed returns a channel that is closed at the next change of the pod.
	Changed(uid types.UID) <-chan struct{}
}

// Runtime are the calls of a runtime that the server needs.
type Runtime interface {
	Exec(context.Context, *cri.ExecRequest) (*cri.ExecResponse, error)
	Attach(context.Context, *cri.AttachRequest) (*cri.AttachResponse, error)
	PortForward(context.Context, *cri.PortForwardRequest) (*cri.PortForwardResponse, error)
	ContainerStatus(context.Context, *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error)
	ListPodSandboxStats(context.Context, *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error)
	ListContainerStats(context.Context, *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error)
}

// Meter are the families of metrics of the agent.
type Meter interface {
	Handler(process prometheus.Gatherer) http.Handler // with those of the process
	Probes() http.Handler
}

// Config is the listener, the allowed clients, and the sources of a server.
type Config struct {
	Listener     net.Listener // plain TCP; Run closes it
	TLS          *tls.Config  // certificate of the node and ClientCAs
	AllowedUsers []string     // common names of client certificates, e.g. "kube-apiserver-kubelet-client"
	// Others admits other clients when the listener can be reached from outside: those with a certificate or token that
	// the API authenticates, for what RBAC allows. Nil: none.
	Others   kubernetes.Interface
	NodeName string
	Root     string // on the file system that pods use
	Pods     Pods
	Runtime  Runtime
	Attacher runtime.Attacher        // nil: attach uses the streaming server of Runtime
	Counter  runtime.Counter         // nil: the runtime has only CRI's statistics
	Checks   []Check                 // of /healthz
	Logs     *NodeLogs               // of the machine; nil: they are not served
	Version  string                  // of the agent, for /statusz
	Summary  summary.Config          // sources of /stats/summary; the server adds node and Root
	Meter    Meter                   // the agent's metrics; nil: only those of the process
	Handlers map[string]http.Handler // further paths, e.g. "/timeline/"; behind the same authentication
	Logger   klog.Logger
}

// Server serves until Run ends.
type Server struct {
	cfg    Config
	http   http.Server
	others *access // nil: only the allowed users
	shown  shownLogs
	// started is when the server was made.
	started time.Time
	slis    *slis // made with the routes
	// summaries computes /stats/summary.
	summaries *summary.Source

	mu    sync.Mutex
	conns map[net.Conn]struct{} // all that are open, also those that an upgrade took over
}

// New makes a server; it serves once Run is called.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Listener == nil:
		return nil, errors.New("node server: no listener")
	case cfg.TLS == nil || cfg.TLS.ClientCAs == nil || len(cfg.TLS.Certificates) == 0 && cfg.TLS.GetCertificate == nil:
		return nil, errors.New("node server: TLS needs a certificate and the CA of the clients")
	case len(cfg.AllowedUsers) == 0:
		return nil, errors.New("node server: no client is allowed to use it")
	}
	s := &Server{cfg: cfg, conns: make(map[net.Conn]struct{}), started: time.Now()}
	cfg.Summary.Node, cfg.Summary.Root = cfg.NodeName, cfg.Root
	s.summaries = summary.New(cfg.Summary)
	if cfg.Others != nil {
		var err error
		if s.others, err = newAccess(cfg.NodeName, cfg.Others); err != nil {
			return nil, err
		}
	}
	s.http = http.Server{
		Handler:           s.authenticated(s.routes()),
		TLSConfig:         cfg.TLS.Clone(),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          log.New(chatter{cfg.Logger}, "", 0),
	}
	// The handshake does not require it, so that a client without a certificate gets an error
	// message.
	s.http.TLSConfig.ClientAuth = tls.VerifyClientCertIfGiven
	return s, nil
}

// chatter receives the log messages of http.Server about failed clients.
type chatter struct{ klog.Logger }

func (c chatter) Write(text []byte) (int, error) {
	c.V(2).Info("HTTP server", "message", strings.TrimSpace(string(text)))
	return len(text), nil
}

// Run serves until ctx ends; open streams end with it.
func (s *Server) Run(ctx context.Context) error {
	streams, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), s.cfg.Logger))
	defer cancel()
	defer s.summaries.Close()
	s.http.BaseContext = func(net.Listener) context.Context { return streams }
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		cancel()
		short, done := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer done()
		if s.http.Shutdown(short) != nil {
			_ = s.http.Close() // the time for remaining clients is over
		}
		s.closeAll()
	})
	err := s.http.ServeTLS(tracked{s.cfg.Listener, s}, "", "")
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("node server: %w", err)
}

// tracked records connections: http.Server no longer tracks those that were upgraded.
type tracked struct {
	net.Listener
	server *Server
}

func (l tracked) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	t := &trackedConn{Conn: c, server: l.server}
	l.server.conns[t] = struct{}{}
	return t, nil
}

type trackedConn struct {
	net.Conn
	server *Server
}

// NetConn returns the connection below, as that of tls.Conn does.
func (c *trackedConn) NetConn() net.Conn { return c.Conn }

func (c *trackedConn) Close() error {
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	return c.Conn.Close()
}

func (s *Server) closeAll() {
	s.mu.Lock()
	var open []net.Conn
	for c := range s.conns {
		open = append(open, c)
	}
	s.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}

func (s *Server) routes() http.Handler {
	s.slis = newSLIs()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	for _, method := range []string{"GET", "POST"} {
		for _, uid := range []string{"", "/{uid}"} {
			mux.HandleFunc(method+" /exec/{namespace}/{pod}"+uid+"/{container}", s.exec)
			mux.HandleFunc(method+" /attach/{namespace}/{pod}"+uid+"/{container}", s.attach)
			mux.HandleFunc(method+" /portForward/{namespace}/{pod}"+uid, s.portForward)
		}
	}
	mux.HandleFunc("POST /checkpoint/{namespace}/{pod}/{container}", s.checkpoint)
	mux.HandleFunc("GET /pods", s.pods)
	mux.HandleFunc("GET /runningpods/", s.runningPods)
	mux.HandleFunc("GET /logs/", s.nodeLogs)
	mux.HandleFunc("GET /statusz", s.statusz)
	mux.HandleFunc("GET /stats/summary", s.summary)
	mux.HandleFunc("POST /stats/summary", s.summary)
	mux.HandleFunc("GET /metrics/resource", s.resourceMetrics)
	mux.HandleFunc("GET /metrics/cadvisor", s.cadvisorMetrics)
	mux.Handle("GET /metrics/slis", s.slis.handler())
	mux.Handle("DELETE /metrics/slis", s.slis.handler())
	if s.cfg.Meter != nil {
		mux.Handle("GET /metrics", s.cfg.Meter.Handler(legacyregistry.DefaultGatherer))
		mux.Handle("GET /metrics/probes", s.cfg.Meter.Probes())
	} else {
		mux.Handle("GET /metrics", legacyregistry.Handler())
	}
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /healthz/{check}", s.healthzOf)
	for path, h := range s.cfg.Handlers {
		mux.Handle(path, h)
	}
	return mux
}

// authenticated serves clients whose certificate names an allowed user, and others if access allows them.
func (s *Server) authenticated(next http.Handler) http.Handler {
	var others http.Handler
	if s.others != nil {
		others = s.others.guard(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		name, verified := "", req.TLS != nil && len(req.TLS.VerifiedChains) > 0
		if verified {
			name = req.TLS.VerifiedChains[0][0].Subject.CommonName
		}
		switch {
		case verified && slices.Contains(s.cfg.AllowedUsers, name):
			next.ServeHTTP(w, req)
		case others != nil:
			others.ServeHTTP(w, req)
		case !verified:
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
		default:
			http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, path=%s)", name, req.Method, req.URL.Path),
				http.StatusForbidden)
		}
	})
}

// find returns the pod of the request, or nil after it has written the error.
func (s *Server) find(w http.ResponseWriter, req *http.Request) *corev1.Pod {
	ns, name := req.PathValue("namespace"), req.PathValue("pod")
	pod := s.cfg.Pods.Pod(ns, name)
	if uid := req.PathValue("uid"); pod == nil || uid != "" && uid != string(pod.UID) {
		http.Error(w, fmt.Sprintf("pod %q not found", ns+"/"+name), http.StatusNotFound)
		return nil
	}
	return pod
}
