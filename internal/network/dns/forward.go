package dns

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"
	"k8s.io/klog/v2"

	core "carob/internal/core/netplan/dns"
)

// Limits of a question to another server, as CoreDNS has them.
const (
	forwardTimeout = 5 * time.Second
	readTimeout    = 2 * time.Second
	mostForwards   = 1000 // in flight, where the configuration sets no limit
)

var (
	errNoUpstream = errors.New("the resolver file of the node names no name server")
	errBusy       = errors.New("too many questions are being forwarded")
	errLoop       = errors.New("the name servers forward questions to this server (a loop)")
)

// exchanger sends one query to one server. udp and tcp are the two ways to do so.
type exchanger interface {
	Exchange(ctx context.Context, to core.Upstream, m *dns.Msg, tcp bool) (*dns.Msg, error)
}

// forwarder sends queries to the servers of one directive `forward`.
type forwarder struct {
	cfg      *core.Forward
	resolver func() []netip.AddrPort // the node's name servers
	exchange exchanger
	m        *metrics
	ctx      context.Context // of the health checks: the life of the configuration
	group    *tasks

	questions context.Context // of questions of clients, which a new configuration does not end

	flights singleflight.Group
	slots   chan struct{}
	next    atomic.Uint32
	looping atomic.Bool

	mu     sync.Mutex
	health map[core.Upstream]*health
}

// health is the state of one server.
type health struct {
	fails    int // consecutive
	checking bool
}

func newForwarder(ctx, questions context.Context, group *tasks, cfg *core.Forward, resolver func() []netip.AddrPort,
	e exchanger, m *metrics) *forwarder {
	most := cfg.MaxConcurrent
	if most == 0 {
		most = mostForwards
	}
	return &forwarder{cfg: cfg, resolver: resolver, exchange: e, m: m, ctx: ctx, questions: questions, group: group,
		slots: make(chan struct{}, most), health: map[core.Upstream]*health{}}
}

// upstreams are the servers to query, in the order of the policy.
func (f *forwarder) upstreams() []core.Upstream {
	all := append([]core.Upstream(nil), f.cfg.To...)
	if f.cfg.Resolver {
		for _, a := range f.resolver() {
			all = append(all, core.Upstream{Addr: a})
		}
	}
	if len(all) < 2 {
		return all
	}
	first := 0
	switch f.cfg.Policy {
	case "random":
		mathrand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	case "round_robin":
		first = int(f.next.Add(1) % uint32(len(all)))
	}
	return append(all[first:], all[:first]...)
}

func (f *forwarder) down(u core.Upstream) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.health[u]
	return f.cfg.MaxFails > 0 && h != nil && h.fails >= f.cfg.MaxFails
}

// note records the result of a query to a server; after a failure the server is checked until it responds.
func (f *forwarder) note(u core.Upstream, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		if h := f.health[u]; h != nil && !h.checking {
			delete(f.health, u)
		} else if h != nil {
			h.fails = 0
		}
		return
	}
	h := f.health[u]
	if h == nil {
		h = &health{}
		f.health[u] = h
	}
	h.fails++
	if !h.checking && f.cfg.MaxFails > 0 && f.ctx.Err() == nil {
		h.checking = f.group.start(func() { f.check(u) })
	}
}

// check sends queries to a server that failed until it responds, then ends.
func (f *forwarder) check(u core.Upstream) {
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-time.After(max(f.cfg.HealthCheck, 10*time.Millisecond)):
		}
		m := new(dns.Msg)
		m.SetQuestion(".", dns.TypeNS)
		ctx, cancel := context.WithTimeout(f.ctx, time.Second)
		_, err := f.exchange.Exchange(ctx, u, m, f.cfg.ForceTCP)
		cancel()
		if err == nil {
			f.mu.Lock()
			delete(f.health, u)
			f.mu.Unlock()
			return
		}
		f.m.unhealthy(u)
		f.mu.Lock()
		f.health[u].fails++
		f.mu.Unlock()
	}
}

// query forwards a question; equal concurrent questions are forwarded once. The caller must not modify the answer.
func (f *forwarder) query(ctx context.Context, key string, m *dns.Msg) (*dns.Msg, error) {
	if f.looping.Load() {
		return nil, errLoop
	}
	result := f.flights.DoChan(key, func() (any, error) {
		select {
		case f.slots <- struct{}{}:
			defer func() { <-f.slots }()
		default:
			f.m.rejects.Inc()
			return nil, errBusy
		}
		// The query outlives the client that sent it first: others wait for it, too.
		ctx, cancel := context.WithTimeout(f.questions, forwardTimeout)
		defer cancel()
		return f.tryAll(ctx, m)
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-result:
		answer, _ := r.Val.(*dns.Msg)
		return answer, r.Err
	}
}

// tryAll tries one server after the other, those that are down only if all are.
func (f *forwarder) tryAll(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	all := f.upstreams()
	if len(all) == 0 {
		return nil, errNoUpstream
	}
	up := make([]core.Upstream, 0, len(all))
	for _, u := range all {
		if !f.down(u) {
			up = append(up, u)
		}
	}
	if len(up) == 0 {
		f.m.broken.Inc()
		up = all[:1] // all are marked as down, so the marks may be wrong: one is tried
	}
	var errs []error
	for try := 0; try < 2*len(up) && ctx.Err() == nil; try++ {
		u := up[try%len(up)]
		answer, err := f.one(ctx, u, m)
		f.note(u, err)
		if err == nil {
			return answer, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no name server answered: %w", errors.Join(errs...))
}

func (f *forwarder) one(ctx context.Context, u core.Upstream, m *dns.Msg) (*dns.Msg, error) {
	if u.TLSName == "" {
		u.TLSName = f.cfg.TLSName
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	tcp := f.cfg.ForceTCP || u.TLS
	started := time.Now()
	answer, err := f.exchange.Exchange(ctx, u, m, tcp)
	if err == nil && answer.Truncated && !tcp {
		if whole, err := f.exchange.Exchange(ctx, u, m, true); err == nil {
			answer = whole
		}
	}
	if err == nil && len(answer.Question) == 0 { // of an error, which some servers answer without it
		answer.Question = m.Question
	}
	f.m.forwarded(u, answer, time.Since(started))
	return answer, err
}

// network sends queries over UDP, TCP, and TLS. Each has its own socket, with a port that the
// kernel chooses, and a random identifier: an answer is accepted only from the server that was queried, with the same
// identifier and question (RFC 5452).
type network struct{}

func (network) Exchange(ctx context.Context, to core.Upstream, m *dns.Msg, tcp bool) (*dns.Msg, error) {
	var id [2]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	request := m.Copy()
	request.Id = binary.BigEndian.Uint16(id[:])
	kind := "udp"
	if tcp {
		kind = "tcp"
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, kind, to.Addr.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if to.TLS {
		name := to.TLSName
		if name == "" {
			name = to.Addr.Addr().String()
		}
		secure := tls.Client(conn, &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12})
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = secure
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c := &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
	if err := c.WriteMsg(request); err != nil {
		return nil, err
	}
	for strays := 0; ; strays++ {
		answer, err := c.ReadMsg()
		if err == nil && answers(request, answer) {
			return answer, nil
		}
		var netErr net.Error
		if tcp || errors.As(err, &netErr) || strays > mostStrays {
			if err == nil {
				err = errors.New("the answer belongs to another question")
			}
			return nil, fmt.Errorf("%s: %w", to.Addr, err)
		}
		// A message that does not belong to this question: the right answer may still come.
	}
}

// mostStrays is how many wrong answers are skipped before a query fails.
const mostStrays = 1000

// answers reports whether a message is an answer to a question.
func answers(request, answer *dns.Msg) bool {
	if answer.Id != request.Id || !answer.Response || answer.Opcode != dns.OpcodeQuery {
		return false
	}
	if len(answer.Question) == 0 { // some servers omit it in an error
		return answer.Rcode != dns.RcodeSuccess && len(answer.Answer) == 0
	}
	a, b := request.Question[0], answer.Question[0]
	return len(answer.Question) == 1 && a.Qtype == b.Qtype && a.Qclass == b.Qclass && strings.EqualFold(a.Name, b.Name)
}

// probe detects a loop: it forwards a random name, which this server receives if there is a loop. One that was found
// has ended when a server answers without that.
func (f *forwarder) probe(ctx context.Context, seen func(name string) <-chan struct{}) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return
	}
	name := fmt.Sprintf("%d.%d.", binary.BigEndian.Uint64(random[:]), binary.BigEndian.Uint64(random[8:]))
	loop := seen(name)
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeHINFO)
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	done := make(chan error, 1)
	if !f.group.start(func() {
		_, err := f.tryAll(ctx, m)
		done <- err
	}) {
		return
	}
	var found bool
	select {
	case <-loop:
		found = true
	case err := <-done:
		select {
		case <-loop:
			found = true
		default:
			found = err != nil && f.looping.Load()
		}
	}
	switch was := f.looping.Swap(found); {
	case found && !was:
		klog.FromContext(ctx).Error(errLoop, "Names outside of the cluster are not resolved; set --resolv-conf or forward "+
			"to another server", "query", name)
	case was && !found:
		klog.FromContext(ctx).Info("Names outside of the cluster are resolved again: the loop has ended")
	}
}
