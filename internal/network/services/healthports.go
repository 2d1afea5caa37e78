package services

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	core "carob/internal/core/netplan/services"
)

// healthPorts are the HTTP servers of Services of type LoadBalancer with externalTrafficPolicy Local,
// each on its healthCheckNodePort, at the addresses where node ports answer (N2.K). Its methods are
// called by the loop of Run, in the network of the node; without such a Service it does nothing.
type healthPorts struct {
	node    string
	healthy func() bool
	failed  func(types.NamespacedName, string) // called once for each reason
	wake    chan struct{}                      // a port that was in use must be tried again
	again   later                              // wakes

	servers map[types.NamespacedName]*healthServer
}

// healthAgain is the wait before a port that is in use is tried again.
const healthAgain = 30 * time.Second

// healthServer is the server of one Service.
type healthServer struct {
	name      types.NamespacedName
	port      uint16
	http      *http.Server
	listeners map[netip.Addr]net.Listener
	reported  string

	mu    sync.Mutex
	local map[bool]int // ready endpoints on this node; the key is whether they are IPv6
}

func newHealthPorts(node string, healthy func() bool, failed func(types.NamespacedName, string)) *healthPorts {
	wake := make(chan struct{}, 1)
	return &healthPorts{node: node, healthy: healthy, failed: failed, wake: wake,
		again:   later{wait: healthAgain, do: func() { poke(wake) }},
		servers: map[types.NamespacedName]*healthServer{}}
}

// update passes Services that have changed, and the current node. families are the ones that are
// served.
func (h *healthPorts) update(ctx context.Context, in []input, node core.Node, families []bool) {
	for i := range in {
		h.service(in[i].Input, node, families)
	}
	h.listen(ctx, node.Addresses)
}

func (h *healthPorts) service(in core.Input, node core.Node, families []bool) {
	port, local := uint16(0), map[bool]int{}
	for _, v6 := range families {
		if check, ok := core.Health(v6, node, in); ok {
			port, local[v6] = check.Port, check.Local
		}
	}
	s := h.servers[in.Name]
	if s != nil && s.port != port {
		_ = s.http.Close()
		delete(h.servers, in.Name)
		s = nil
	}
	if port == 0 {
		return
	}
	if s == nil {
		s = &healthServer{name: in.Name, port: port, listeners: map[netip.Addr]net.Listener{}}
		s.http = newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.answer(w, r, h.healthy())
		}))
		h.servers[in.Name] = s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.local = local
}

// listen opens and closes listeners, so that each server has one at each address of its families.
func (h *healthPorts) listen(ctx context.Context, addresses []netip.Addr) {
	for _, s := range h.servers { // any order: each Service by itself
		var wanted []netip.Addr
		for _, a := range addresses {
			if _, has := s.count(a.Is6()); has {
				wanted = append(wanted, a)
			}
		}
		for a, l := range s.listeners {
			if !slices.Contains(wanted, a) {
				_ = l.Close()
				delete(s.listeners, a)
			}
		}
		failure := ""
		for _, a := range wanted {
			if s.listeners[a] != nil {
				continue
			}
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(a, s.port).String())
			if err != nil {
				failure = fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %v", h.node, s.name, s.port,
					err)
				continue
			}
			s.listeners[a] = l
			go func() { _ = s.http.Serve(limit(l)) }() // until the listener or the server is closed
		}
		if failure != "" {
			h.again.start()
			if s.reported != failure {
				klog.FromContext(ctx).Info("Cannot serve the health check of a Service; trying again", "service",
					s.name, "port", s.port, "err", failure)
				h.failed(s.name, failure)
			}
		}
		s.reported = failure
	}
}

func (h *healthPorts) close() {
	for _, s := range h.servers {
		_ = s.http.Close()
	}
	clear(h.servers)
}

// count is the number of local endpoints in a family that the Service has.
func (s *healthServer) count(v6 bool) (n int, has bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, has = s.local[v6]
	return n, has
}

// healthAnswer has the fields of kube-proxy's answer (N2.56).
type healthAnswer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// answer is the same for each path and method (N2.54); it is about the family of the connection.
func (s *healthServer) answer(w http.ResponseWriter, r *http.Request, healthy bool) {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	n := 0
	if addr, ok := at.(*net.TCPAddr); ok {
		n, _ = s.count(addr.AddrPort().Addr().Unmap().Is6())
	}
	body := healthAnswer{LocalEndpoints: n, ServiceProxyHealthy: healthy}
	body.Service.Namespace, body.Service.Name = s.name.Namespace, s.name.Name
	status := http.StatusServiceUnavailable
	if n > 0 && healthy {
		status = http.StatusOK
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(n))
	writeJSON(w, status, body)
}

func limit(l net.Listener) net.Listener { return netutil.LimitListener(l, maxHealthConns) }

// healthFailed records the event of a health check that cannot be served (N2.58).
func (p *Proxy) healthFailed(name types.NamespacedName, text string) {
	if s := p.feed.service(name); s != nil && p.cfg.Events != nil {
		p.cfg.Events.Event(s, corev1.EventTypeWarning, "FailedToStartServiceHealthcheck", text)
	}
}
