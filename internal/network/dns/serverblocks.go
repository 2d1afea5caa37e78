package dns

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/miekg/dns"

	core "carob/internal/core/netplan/dns"
)

// serverBlocks is a configuration in force; stop ends it, and retire does so after another one replaced it.
type serverBlocks struct {
	all    []*serverBlock
	cancel context.CancelFunc // of health checks, probes, refreshes
	end    context.CancelFunc // of questions to other servers
	group  tasks              // health checks, probes, refreshes
}

// serverBlock is a server block in force.
type serverBlock struct {
	*core.Server
	cache     *answerCache // nil: none
	forwards  []*forwarder
	templates []*answerTemplate
	figures   []*zoneMetrics // by zone
	simple    bool           // questions may be answered without a message of package dns
}

// answerTemplate is a compiled directive `template`.
type answerTemplate struct {
	*core.Template
	match                         []*regexp.Regexp
	answer, additional, authority []*template.Template
	typ, class                    uint16 // 255: all
	rcode                         int
}

// cacheOf is the cache for a name; nil for none.
func (s *serverBlock) cacheOf(q *core.Query) *answerCache {
	if s.cache == nil || len(s.Cache.Zones) > 0 && !within(q, s.Cache.Zones) {
		return nil
	}
	return s.cache
}

// forwarderOf returns the forwarder for a name; nil if there is none.
func (s *serverBlock) forwarderOf(q *core.Query) *forwarder {
	for _, f := range s.forwards {
		if q.Within(f.cfg.From) && !within(q, f.cfg.Except) {
			return f
		}
	}
	return nil
}

// tasks are goroutines that end with a configuration.
type tasks struct {
	mu      sync.Mutex
	stopped bool
	group   sync.WaitGroup
}

// start runs f, unless the tasks were stopped.
func (t *tasks) start(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return false
	}
	t.group.Go(f)
	return true
}

// stop waits for the end of all tasks.
func (t *tasks) stop() {
	t.mu.Lock()
	t.stopped = true
	t.mu.Unlock()
	t.group.Wait()
}

// build starts a configuration. The error names the invalid directive.
func build(cfg *core.Config, resolver func() []netip.AddrPort, e exchanger, now func() time.Time,
	m *metrics) (*serverBlocks, error) {
	out := &serverBlocks{}
	ctx, cancel := context.WithCancel(context.Background())
	out.cancel = cancel
	questions, end := context.WithCancel(context.Background())
	out.end = end
	for i := range cfg.Servers {
		s := &serverBlock{Server: &cfg.Servers[i]}
		if s.Cache != nil {
			s.cache = newCache(s.Cache, now, m)
		}
		for i := range s.Forwards {
			s.forwards = append(s.forwards, newForwarder(ctx, questions, &out.group, &s.Forwards[i], resolver, e, m))
		}
		for i := range s.Templates {
			t, err := compile(&s.Templates[i])
			if err != nil {
				cancel()
				return nil, err
			}
			s.templates = append(s.templates, t)
		}
		for i := range s.Rewrites {
			known := func(t string) bool { return dns.StringToType[t] != 0 }
			if !s.Rewrites[i].Types(known) {
				cancel()
				return nil, fmt.Errorf("rewrite type: unknown type of DNS record")
			}
		}
		for _, z := range s.Text {
			s.figures = append(s.figures, m.zone(z))
		}
		s.simple = len(s.Rewrites) == 0 && len(s.templates) == 0 && s.Hosts == nil && !s.LogAll
		out.all = append(out.all, s)
	}
	return out, nil
}

// stop ends what the configuration started, and waits for it.
func (s *serverBlocks) stop() {
	s.end()
	s.retire()
}

// retire is stop, but clients get the answers to the questions that are forwarded now: each ends after its time limit.
func (s *serverBlocks) retire() {
	s.cancel()
	s.group.stop()
}

// of returns the server block of a name, and which of its zones it is in; nil for none.
func (s *serverBlocks) of(q *core.Query) (best *serverBlock, zone int) {
	longest := -1
	for _, one := range s.all {
		for i, z := range one.Zones {
			if len(z) > longest && q.Within(z) {
				best, zone, longest = one, i, len(z)
			}
		}
	}
	return best, zone
}

func compile(in *core.Template) (*answerTemplate, error) {
	t := &answerTemplate{Template: in}
	var ok bool
	if t.typ, ok = dns.StringToType[in.Type]; !ok {
		return nil, fmt.Errorf("template: the type %s is not known", in.Type)
	}
	if t.class, ok = dns.StringToClass[in.Class]; !ok {
		return nil, fmt.Errorf("template: the class %s is not known", in.Class)
	}
	if t.rcode, ok = dns.StringToRcode[in.Rcode]; !ok {
		return nil, fmt.Errorf("template: the response code %s is not known", in.Rcode)
	}
	for _, m := range in.Match {
		r, err := regexp.Compile(m)
		if err != nil {
			return nil, fmt.Errorf("template: match: %w", err)
		}
		t.match = append(t.match, r)
	}
	for _, list := range []struct {
		in  []string
		out *[]*template.Template
	}{{in.Answer, &t.answer}, {in.Additional, &t.additional}, {in.Authority, &t.authority}} {
		for _, text := range list.in {
			one, err := template.New("").Parse(text)
			if err != nil {
				return nil, fmt.Errorf("template: %w", err)
			}
			*list.out = append(*list.out, one)
		}
	}
	return t, nil
}

// templateData is what a template can refer to.
type templateData struct {
	Zone, Name, Class, Type, Remote string
	Match                           []string
	Group                           map[string]string
	Question                        *dns.Question
}

// reply answers from the template; next reports that the next plugin should answer.
func (t *answerTemplate) reply(req *dns.Msg, q *core.Query, from netip.Addr) (m *dns.Msg, next bool) {
	question := req.Question[0]
	zone := ""
	for _, z := range t.Zones {
		if q.Within(z) && len(core.Text(z)) > len(zone) {
			zone = core.Text(z)
		}
	}
	if zone == "" || t.typ != dns.TypeANY && t.typ != question.Qtype ||
		t.class != dns.ClassANY && t.class != question.Qclass {
		return nil, true
	}
	name := strings.ToLower(question.Name)
	data := templateData{Zone: zone, Name: name, Class: dns.ClassToString[question.Qclass],
		Type: dns.TypeToString[question.Qtype], Remote: from.String(), Group: map[string]string{}, Question: &question}
	matched := len(t.match) == 0
	for _, r := range t.match {
		groups := r.FindStringSubmatch(name)
		if groups == nil {
			continue
		}
		matched, data.Match = true, groups
		for i, g := range r.SubexpNames() {
			if g != "" {
				data.Group[g] = groups[i]
			}
			data.Group[fmt.Sprint(i)] = groups[i]
		}
		break
	}
	if !matched {
		if slices.ContainsFunc(t.Fallthrough, q.Within) {
			return nil, true
		}
		return failure(req, dns.RcodeServerFailure), false
	}
	m = new(dns.Msg)
	m.SetRcode(req, t.rcode)
	m.Authoritative = true
	for _, list := range []struct {
		templates []*template.Template
		out       *[]dns.RR
	}{{t.answer, &m.Answer}, {t.additional, &m.Extra}, {t.authority, &m.Ns}} {
		for _, one := range list.templates {
			var b bytes.Buffer
			if err := one.Execute(&limited{&b}, &data); err != nil {
				return failure(req, dns.RcodeServerFailure), false
			}
			rr, err := dns.NewRR(b.String())
			if err != nil || rr == nil {
				return failure(req, dns.RcodeServerFailure), false
			}
			*list.out = append(*list.out, rr)
		}
	}
	return m, false
}

// limited is a writer that fails if a template writes more than a record can contain.
type limited struct{ *bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > core.MaxMessage {
		return 0, fmt.Errorf("a template writes more than %d bytes", core.MaxMessage)
	}
	return l.Buffer.Write(p)
}

func failure(req *dns.Msg, rcode int) *dns.Msg { return new(dns.Msg).SetRcode(req, rcode) }
