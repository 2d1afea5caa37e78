package dns

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"k8s.io/klog/v2"

	core "carob/internal/core/netplan/dns"
)

// mostAliases is how many consecutive aliases are followed (N4.21).
const mostAliases = 10

// served is a query of a client, and the plugin that answered it.
type served struct {
	from   netip.Addr
	plugin int
}

// resolve answers a question by the directives of its server block. The answer's question is that
// of req.
func (s *Server) resolve(ctx context.Context, on *serverBlocks, req *dns.Msg, a *served, depth int) *dns.Msg {
	q, ok := parsed(req)
	if !ok {
		return failure(req, dns.RcodeFormatError)
	}
	one, _ := on.of(&q)
	if one == nil {
		return failure(req, dns.RcodeRefused)
	}
	if one.LogAll && (len(one.LogZones) == 0 || within(&q, one.LogZones)) {
		klog.FromContext(ctx).Info("A name is queried", "from", a.from, "name", req.Question[0].Name,
			"type", dns.TypeToString[req.Question[0].Qtype])
	}
	changed, undo := rewrite(one, req)
	if changed != req {
		if q, ok = parsed(changed); !ok {
			return failure(req, dns.RcodeFormatError)
		}
	}
	return undo(s.chain(ctx, on, one, changed, &q, a, depth))
}

func within(q *core.Query, zones [][]byte) bool {
	return slices.ContainsFunc(zones, q.Within)
}

// parsed is a question in the form of package core.
func parsed(req *dns.Msg) (q core.Query, ok bool) {
	request := &dns.Msg{MsgHdr: dns.MsgHdr{Id: req.Id, RecursionDesired: true}, Question: req.Question}
	wire, err := request.Pack()
	if err != nil {
		return q, false
	}
	verdict, _ := q.Parse(wire)
	return q, verdict == core.Accept
}

// chain tries template, hosts, kubernetes, and forward, in this order.
func (s *Server) chain(ctx context.Context, on *serverBlocks, one *serverBlock, req *dns.Msg, q *core.Query, a *served,
	depth int) *dns.Msg {
	for _, t := range one.templates {
		if m, next := t.reply(req, q, a.from); !next {
			a.plugin = pluginTemplate
			return m
		}
	}
	if one.Hosts != nil {
		if m := hosts(one.Hosts, req, q); m != nil {
			a.plugin = pluginHosts
			return m
		}
	}
	if one.Kubernetes != nil && q.Class == core.ClassIN {
		if m := s.cluster(ctx, on, one, req, q, a, depth); m != nil {
			a.plugin = pluginKubernetes
			return m
		}
	}
	if f := one.forwarderOf(q); f != nil {
		a.plugin = pluginForward
		return s.forward(ctx, on, one, f, req, q)
	}
	return failure(req, dns.RcodeRefused)
}

// cluster answers from the zone; nil if the name is not its own.
func (s *Server) cluster(ctx context.Context, on *serverBlocks, one *serverBlock, req *dns.Msg, q *core.Query,
	a *served, depth int) *dns.Msg {
	var b core.Builder
	b.Begin(nil, q, false)
	r := s.zone.answer(q, one.Kubernetes, &b, one.Shuffle)
	switch r.Outcome {
	case core.Next:
		return nil
	case core.Answered:
		m := new(dns.Msg)
		if err := m.Unpack(b.End(r.Rcode, true, false)); err != nil {
			return failure(req, dns.RcodeServerFailure)
		}
		return m
	case core.Alias:
	}
	// An alias: its target is resolved like any other name, so it may be in another server block.
	m := new(dns.Msg).SetReply(req)
	m.Authoritative = true
	name := req.Question[0].Name
	target := core.Text(r.Target)
	m.Answer = []dns.RR{&dns.CNAME{Target: target,
		Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: r.TTL}}}
	if depth >= mostAliases || strings.EqualFold(name, target) {
		m.Rcode = dns.RcodeServerFailure
		return m
	}
	request := req.Copy()
	request.Question[0].Name = target
	answer := s.resolve(ctx, on, request, a, depth+1)
	switch answer.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError: // as CoreDNS: the alias exists
		m.Answer = append(m.Answer, answer.Answer...)
	default:
		m.Rcode = dns.RcodeServerFailure
	}
	return m
}

// forward answers from the cache, or queries other servers.
func (s *Server) forward(ctx context.Context, on *serverBlocks, one *serverBlock, f *forwarder, req *dns.Msg,
	q *core.Query) *dns.Msg {
	question := req.Question[0]
	opt := req.IsEdns0()
	do := opt != nil && opt.Do()
	request := forwarded(question, req.RecursionDesired, req.CheckingDisabled, opt != nil, do)
	key := string(keyOf(nil, q.Lower(), question.Qtype, question.Qclass, req.RecursionDesired, do,
		req.CheckingDisabled))
	c := one.cacheOf(q)
	var old hit
	stale := false
	if c != nil {
		h, ok := c.get([]byte(key))
		if !one.simple {
			s.m.looked(&h, ok)
		}
		if ok {
			if old, stale = h, h.stale; !stale {
				if h.refresh {
					s.refresh(on, c, f, key, request, true)
				}
				return cached(req, &h, 0)
			}
		}
	}
	fresh := func(ctx context.Context) (*dns.Msg, error) {
		answer, err := f.query(ctx, key, request)
		if err == nil && c != nil && !(stale && answer.Rcode == dns.RcodeServerFailure) {
			c.put(key, answer)
		}
		return answer, err
	}
	if stale {
		if !c.cfg.StaleVerify {
			s.refresh(on, c, f, key, request, false)
			s.m.stale.Inc()
			return cached(req, &old, c.cfg.StaleTTL)
		}
		if c.cfg.VerifyTimeout > 0 {
			var cancel context.CancelFunc
			// The request continues when the wait ends: the refresh below joins it and keeps its
			// answer.
			ctx, cancel = context.WithTimeout(ctx, c.cfg.VerifyTimeout)
			defer cancel()
		}
	}
	answer, err := fresh(ctx)
	if stale && (err != nil || answer.Rcode == dns.RcodeServerFailure) {
		if err != nil {
			s.refresh(on, c, f, key, request, false)
		}
		s.m.stale.Inc()
		return cached(req, &old, c.cfg.StaleTTL)
	}
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			klog.FromContext(ctx).V(2).Info("A name could not be resolved", "name", question.Name,
				"type", dns.TypeToString[question.Qtype], "err", err)
		}
		rcode := dns.RcodeServerFailure
		if errors.Is(err, errBusy) {
			rcode = dns.RcodeRefused
		}
		return failure(req, rcode)
	}
	m := answer.Copy()
	m.Id, m.Question = req.Id, req.Question
	restoreCase(m, request.Question[0].Name, question.Name)
	return m
}

// forwarded is a question to another server.
func forwarded(question dns.Question, recursion, checking, edns, do bool) *dns.Msg {
	question.Name = strings.ToLower(question.Name)
	m := &dns.Msg{MsgHdr: dns.MsgHdr{RecursionDesired: recursion, CheckingDisabled: checking},
		Question: []dns.Question{question}}
	if edns {
		m.SetEdns0(forwardUDP, do)
	}
	return m
}

// forwardUDP is what an answer of another server over UDP may have at most, so that it is not
// fragmented (DNS flag day 2020); for a longer one the client uses TCP.
const forwardUDP = 1232

// restoreCase writes a name as the client did.
func restoreCase(m *dns.Msg, lower, queried string) {
	for _, list := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range list {
			if rr.Header().Name == lower {
				rr.Header().Name = queried
			}
		}
	}
}

// cached is an answer from the cache as a message.
func cached(req *dns.Msg, h *hit, staleTTL uint32) *dns.Msg {
	m := new(dns.Msg)
	if err := m.Unpack(h.wire); err != nil {
		return failure(req, dns.RcodeServerFailure)
	}
	lower := m.Question[0].Name
	m.Id, m.Question, m.RecursionDesired, m.CheckingDisabled = req.Id, req.Question, req.RecursionDesired,
		req.CheckingDisabled
	for _, list := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range list {
			ttl := &rr.Header().Ttl
			switch {
			case h.stale:
				*ttl = staleTTL
			default:
				*ttl -= min(*ttl, h.age)
			}
		}
	}
	restoreCase(m, lower, req.Question[0].Name)
	return m
}

// refresh queries for a cached answer again, in the background; claimed means that the caller may.
func (s *Server) refresh(on *serverBlocks, c *answerCache, f *forwarder, key string, request *dns.Msg, claimed bool) {
	if !claimed && !c.claim([]byte(key)) {
		return
	}
	started := on.group.start(func() {
		defer c.release(key)
		ctx, cancel := context.WithTimeout(f.ctx, forwardTimeout+time.Second)
		defer cancel()
		if answer, err := f.query(ctx, key, request); err == nil && answer.Rcode != dns.RcodeServerFailure {
			c.put(key, answer)
		}
	})
	if !started {
		c.release(key)
		return
	}
	s.m.prefetches.Inc()
}

// hosts answers from the entries in the Corefile as CoreDNS does; nil: the next plugin answers.
func hosts(h *core.Hosts, req *dns.Msg, q *core.Query) *dns.Msg {
	question := req.Question[0]
	pointer := question.Qtype == dns.TypePTR
	if len(h.Zones) > 0 && !within(q, h.Zones) && !pointer {
		return nil
	}
	header := dns.RR_Header{Name: question.Name, Rrtype: question.Qtype, Class: dns.ClassINET, Ttl: h.TTL}
	m := new(dns.Msg).SetReply(req)
	m.Authoritative = true
	if pointer {
		ip, _ := q.Reverse()
		for _, name := range h.Addresses[ip] {
			m.Answer = append(m.Answer, &dns.PTR{Hdr: header, Ptr: core.Text(name)})
		}
		if len(m.Answer) == 0 {
			return nil
		}
		return m
	}
	list := h.Names[string(q.Lower())]
	for _, ip := range list {
		switch {
		case ip.Is4() && question.Qtype == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: header, A: ip.AsSlice()})
		case ip.Is6() && question.Qtype == dns.TypeAAAA:
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: header, AAAA: ip.AsSlice()})
		}
	}
	switch {
	case len(list) > 0:
		return m // without records of other types (NODATA)
	case within(q, h.Fallthrough):
		return nil
	}
	return failure(req, dns.RcodeServerFailure)
}

// rewrite applies the rules of a server block to a question, and returns what undoes them.
func rewrite(one *serverBlock, req *dns.Msg) (*dns.Msg, func(*dns.Msg) *dns.Msg) {
	if len(one.Rewrites) == 0 {
		return req, func(m *dns.Msg) *dns.Msg { return m }
	}
	type step struct {
		rule          *core.Rewrite
		before, after string
	}
	question := req.Question[0]
	name, typ := strings.ToLower(question.Name), dns.TypeToString[question.Qtype]
	var steps []step
	for i := range one.Rewrites {
		r := &one.Rewrites[i]
		newName, newType, ok := r.Question(name, typ)
		if !ok {
			continue
		}
		steps = append(steps, step{r, name, newName})
		name, typ = newName, newType
		if !r.Continue {
			break
		}
	}
	if len(steps) == 0 {
		return req, func(m *dns.Msg) *dns.Msg { return m }
	}
	steps[0].before = question.Name
	changed := req.Copy()
	changed.Question[0].Name = name
	if t, ok := dns.StringToType[typ]; ok {
		changed.Question[0].Qtype = t
	}
	return changed, func(m *dns.Msg) *dns.Msg {
		m = m.Copy()
		for _, s := range slices.Backward(steps) {

			for _, list := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
				for _, rr := range list {
					h := rr.Header()
					h.Name = s.rule.Owner(h.Name, s.before, s.after)
					h.Ttl = s.rule.TTL(h.Ttl)
					switch v := rr.(type) {
					case *dns.CNAME:
						v.Target = s.rule.Value(v.Target)
					case *dns.PTR:
						v.Ptr = s.rule.Value(v.Ptr)
					case *dns.SRV:
						v.Target = s.rule.Value(v.Target)
					case *dns.MX:
						v.Mx = s.rule.Value(v.Mx)
					case *dns.NS:
						v.Ns = s.rule.Value(v.Ns)
					}
				}
			}
		}
		m.Question = req.Question
		return m
	}
}
