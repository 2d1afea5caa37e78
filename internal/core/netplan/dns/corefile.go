package dns

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"carob/internal/base/errkind"
)

// Config is a Corefile.
type Config struct{ Servers []Server }

// Server is a server block: the configuration of its zones. Plugins work in CoreDNS's order,
// whatever the order of the directives.
type Server struct {
	Zones    [][]byte // wire form in lower case
	Text     []string // the zones as text, with a dot at the end
	LogAll   bool     // log every query of LogZones
	LogZones [][]byte

	Cache      *Cache
	Rewrites   []Rewrite
	Templates  []Template
	Hosts      *Hosts
	Kubernetes *Kubernetes
	Loop       bool
	Forwards   []Forward
	Shuffle    bool // loadbalance
}

// Cache is the directive `cache`.
type Cache struct {
	Zones           [][]byte // empty: all of the server
	Success, Denial CacheLimits
	ServFail        time.Duration
	Prefetch        int // number of queries for a name; 0: no prefetch
	PrefetchWithin  time.Duration
	PrefetchPercent int
	ServeStale      time.Duration // 0: never
	StaleVerify     bool          // query first, and use stale answers only if that fails
	StaleTTL        uint32
	VerifyTimeout   time.Duration // 0: the upstream's own
}

// CacheLimits are the limits for positive or for negative answers.
type CacheLimits struct {
	Capacity int // answers; 0: not cached
	TTL, Min time.Duration
}

// Forward is the directive `forward`.
type Forward struct {
	From          []byte
	To            []Upstream
	Resolver      bool // the servers of the node's resolver file, too
	Except        [][]byte
	ForceTCP      bool
	PreferUDP     bool
	MaxFails      int
	MaxConcurrent int
	HealthCheck   time.Duration
	Policy        string // random, round_robin, sequential
	TLSName       string
}

// Upstream is a server that questions are forwarded to.
type Upstream struct {
	Addr    netip.AddrPort
	TLS     bool
	TLSName string
}

// Hosts is the directive `hosts` with entries in the Corefile.
type Hosts struct {
	Zones       [][]byte                // empty: all
	Names       map[string][]netip.Addr // by wire form in lower case
	Addresses   map[netip.Addr][][]byte // wire forms
	TTL         uint32
	Fallthrough [][]byte
}

// Template is the directive `template`.
type Template struct {
	Type        string // ANY for all
	Class       string
	Zones       [][]byte
	Match       []string // regular expressions; none: all names
	Answer      []string // of package text/template
	Additional  []string
	Authority   []string
	Rcode       string
	Fallthrough [][]byte
}

// maxTTL is the longest TTL that a Corefile may set, in seconds.
const maxTTL = 3600

// Defaults of CoreDNS's plugins.
const (
	defaultTTL       = 5
	defaultHostsTTL  = 3600
	defaultCapacity  = 9984
	defaultCacheTTL  = time.Hour
	defaultDenialTTL = 30 * time.Minute
	defaultMinTTL    = 5 * time.Second
	defaultServFail  = 5 * time.Second
	maxUpstreams     = 15
	defaultMaxFails  = 2
	defaultHealth    = 500 * time.Millisecond
	dnsPort          = 53
	tlsPort          = 853
	mostServers      = 256
	mostRules        = 4096
)

// DefaultCorefile is used without a ConfigMap: CoreDNS's as Kubernetes ships it (N4.14), with
// shorter TTLs, because answers about the cluster come from the memory of the same machine.
func DefaultCorefile(domain string) string {
	return `.:53 {
    errors
    health
    ready
    kubernetes ` + domain + ` in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }
    prometheus
    forward . /etc/resolv.conf {
        max_concurrent 1000
    }
    cache 30 {
        prefetch 10 1m 10%
        serve_stale 1h verify
    }
    loop
    reload
    loadbalance
}
`
}

// resolvConf is the resolver file that a Corefile may name: it stands for the node's file.
const resolvConf = "/etc/resolv.conf"

// Parse reads a Corefile. Errors are of kind Invalid and name the line.
func Parse(text string) (*Config, error) {
	all, err := blocks(text)
	if err != nil {
		return nil, err
	}
	if len(all) > mostServers {
		return nil, errkind.Errorf(errkind.Invalid, "the Corefile has %d server blocks, at most %d", len(all), mostServers)
	}
	c := &Config{}
	zones := map[string]int{}
	for _, b := range all {
		s, err := server(b)
		if err != nil {
			return nil, err
		}
		for i, z := range s.Zones {
			if first, ok := zones[string(z)]; ok {
				return nil, errkind.Errorf(errkind.Invalid, "Corefile:%d: zone %s has a server block in line %d already",
					b.number, s.Text[i], first)
			}
			zones[string(z)] = b.number
		}
		c.Servers = append(c.Servers, *s)
	}
	return c, nil
}

// parser reads one directive.
type parser struct {
	server *Server
	d      directive
	at     int // line of what is read
}

func (p *parser) fail(format string, args ...any) error {
	return errkind.Errorf(errkind.Invalid, "Corefile:%d: "+format, append([]any{p.at}, args...)...)
}

func server(b block) (*Server, error) {
	s := &Server{}
	for _, k := range b.keys {
		zones, err := zoneKey(k)
		if err != nil {
			return nil, errkind.Errorf(errkind.Invalid, "Corefile:%d: %w", b.number, err)
		}
		for _, z := range zones {
			s.Zones, s.Text = append(s.Zones, z), append(s.Text, Text(z))
		}
	}
	seen := map[string]bool{}
	for _, d := range b.directives {
		p := &parser{server: s, d: d, at: d.number}
		name := d.words[0]
		read, ok := directives(name)
		if !ok {
			return nil, p.fail("carob's DNS does not support the directive %q; it supports %s", name,
				strings.Join(directiveNames(), ", "))
		}
		if seen[name] && name != "rewrite" && name != "forward" && name != "template" && name != "log" {
			return nil, p.fail("%s may be in a server block once", name)
		}
		seen[name] = true
		if len(s.Rewrites)+len(s.Templates)+len(s.Forwards) > mostRules {
			return nil, p.fail("the server block has more than %d rules", mostRules)
		}
		if err := read(p); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// zoneKey reads the key of a server block: a zone, or the range of a reverse zone, with a port.
func zoneKey(k string) ([][]byte, error) {
	k = strings.TrimPrefix(k, "dns://")
	if strings.Contains(k, "://") {
		return nil, errkind.Errorf(errkind.Invalid, "%q: carob's DNS answers plain DNS only", k)
	}
	// The address of a range may have colons; a port stands behind its length.
	if at := strings.LastIndexByte(k, ':'); at > strings.LastIndexByte(k, '/') {
		if k[at+1:] != "53" {
			return nil, errkind.Errorf(errkind.Invalid, "%q: carob's DNS answers on port 53 only", k)
		}
		if k = k[:at]; k == "" {
			k = "."
		}
	}
	if strings.ContainsAny(k, "{}()$") || k == "import" {
		return nil, errkind.Errorf(errkind.Invalid, "%q: variables, snippets, and imports are not supported", k)
	}
	if prefix, err := netip.ParsePrefix(k); err == nil {
		return [][]byte{reverseZone(prefix)}, nil
	}
	if strings.ContainsAny(k, "/:") {
		return nil, errkind.Errorf(errkind.Invalid, "%q is neither a zone nor a range", k)
	}
	z, err := Wire(k)
	return [][]byte{z}, err
}

// reverseZone returns the zone of a range, cut at a whole byte or digit.
func reverseZone(p netip.Prefix) []byte {
	var labels []string
	if p.Addr().Is4() {
		b := p.Addr().As4()
		for i := range p.Bits() / 8 {
			labels = append(labels, strconv.Itoa(int(b[i])))
		}
		labels = append(slices.Clone(labels[:0:0]), reversed(labels)...)
		labels = append(labels, "in-addr", "arpa")
	} else {
		b := p.Addr().As16()
		for i := range p.Bits() / 4 {
			labels = append(labels, strconv.FormatUint(uint64(b[i/2]>>(4*(1-i%2))&0xf), 16))
		}
		labels = append(reversed(labels), "ip6", "arpa")
	}
	z, _ := Wire(strings.Join(labels, "."))
	return z
}

func reversed(list []string) []string {
	out := slices.Clone(list)
	slices.Reverse(out)
	return out
}

func directiveNames() []string {
	return []string{"cache", "errors", "forward", "health", "hosts", "kubernetes", "loadbalance", "log", "loop",
		"prometheus", "ready", "reload", "rewrite", "template"}
}

func directives(name string) (func(*parser) error, bool) {
	switch name {
	case "errors", "health", "ready", "reload", "prometheus":
		// carob logs errors, follows the ConfigMap, and has its own health checks and metrics.
		return func(*parser) error { return nil }, true
	case "loadbalance":
		return (*parser).loadbalance, true
	case "loop":
		return func(p *parser) error { p.server.Loop = true; return nil }, true
	case "log":
		return (*parser).log, true
	case "kubernetes":
		return (*parser).kubernetes, true
	case "forward":
		return (*parser).forward, true
	case "cache":
		return (*parser).cache, true
	case "hosts":
		return (*parser).hosts, true
	case "rewrite":
		return (*parser).rewrite, true
	case "template":
		return (*parser).template, true
	}
	return nil, false
}

func (p *parser) loadbalance() error {
	if args := p.d.words[1:]; len(args) > 1 || len(args) == 1 && args[0] != "round_robin" || len(p.d.body) > 0 {
		return p.fail("loadbalance takes the policy round_robin only")
	}
	p.server.Shuffle = true
	return nil
}

func (p *parser) log() error {
	p.server.LogAll = true
	for _, a := range p.d.words[1:] {
		z, err := Wire(a)
		if err != nil || strings.ContainsAny(a, "{}") {
			return p.fail("log takes zones; formats are not supported")
		}
		p.server.LogZones = append(p.server.LogZones, z)
	}
	return nil
}

// zones reads names of zones; without any, those of the server block.
func (p *parser) zones(words []string) ([][]byte, error) {
	if len(words) == 0 {
		return p.server.Zones, nil
	}
	var out [][]byte
	for _, w := range words {
		z, err := zoneKey(w)
		if err != nil {
			return nil, p.fail("%w", err)
		}
		out = append(out, z...)
	}
	return out, nil
}

// option is a line of a directive's body.
func (p *parser) options(read func(name string, args []string) error) error {
	for _, l := range p.d.body {
		p.at = l.number
		if err := read(l.words[0], l.words[1:]); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) number(args []string, low, high int) (int, error) {
	if len(args) != 1 {
		return 0, p.fail("expected one number")
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < low || n > high {
		return 0, p.fail("%q is not a number from %d to %d", args[0], low, high)
	}
	return n, nil
}

// duration reads a duration; a plain number is seconds.
func (p *parser) duration(s string) (time.Duration, error) {
	if n, err := strconv.Atoi(s); err == nil {
		s = strconv.Itoa(n) + "s"
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > 24*365*time.Hour {
		return 0, p.fail("%q is not a duration, such as 30s", s)
	}
	return d, nil
}

// fallthroughs returns the zones whose unknown names are passed on; none means all.
func (p *parser) fallthroughs(args []string) ([][]byte, error) {
	if len(args) == 0 {
		return [][]byte{{0}}, nil
	}
	return p.zones(args)
}

func (p *parser) kubernetes() error {
	k := &Kubernetes{TTL: defaultTTL, Pods: PodsDisabled}
	var err error
	if k.Zones, err = p.zones(p.d.words[1:]); err != nil {
		return err
	}
	for _, z := range k.Zones {
		if !strings.HasSuffix(string(z), reverse4) && !strings.HasSuffix(string(z), reverse6) {
			k.Primary = z
			break
		}
	}
	if k.Primary == nil {
		return p.fail("kubernetes needs a zone that is not a reverse zone")
	}
	p.server.Kubernetes = k
	return p.options(func(name string, args []string) (err error) {
		switch name {
		case "pods":
			mode := PodMode(strings.Join(args, " "))
			if mode != PodsDisabled && mode != PodsInsecure && mode != PodsVerified {
				return p.fail("pods is one of disabled, insecure, verified")
			}
			k.Pods = mode
		case "ttl":
			n, err := p.number(args, 0, maxTTL)
			k.TTL = uint32(n)
			return err
		case "fallthrough":
			k.Fallthrough, err = p.fallthroughs(args)
		case "namespaces":
			k.Namespaces = map[string]bool{}
			for _, a := range args {
				k.Namespaces[string(wireLabel(a))] = true
			}
		case "endpoint_pod_names":
			k.EndpointPodNames = true
		case "ignore":
			if !slices.Equal(args, []string{"empty_service"}) {
				return p.fail("ignore takes empty_service only")
			}
			k.IgnoreEmpty = true
		case "startup_timeout": // carob answers at once, unknown names with SERVFAIL until the zone is complete
		default:
			return p.fail("kubernetes: carob's DNS does not support the option %q", name)
		}
		return err
	})
}

func (p *parser) hosts() error {
	h := &Hosts{TTL: defaultHostsTTL, Names: map[string][]netip.Addr{}, Addresses: map[netip.Addr][][]byte{}}
	p.server.Hosts = h
	args := p.d.words[1:]
	if len(args) > 0 {
		if strings.Contains(args[0], "/") {
			return p.fail("hosts: carob's DNS reads no files for a ConfigMap; write the entries into the block")
		}
		// CoreDNS treats the first word as a file name, which does not exist here: the other words
		// are zones.
		var err error
		if len(args) > 1 {
			if h.Zones, err = p.zones(args[1:]); err != nil {
				return err
			}
		}
	}
	reverse := true
	err := p.options(func(name string, args []string) (err error) {
		switch name {
		case "fallthrough":
			h.Fallthrough, err = p.fallthroughs(args)
		case "ttl":
			n, err := p.number(args, 1, 65535)
			h.TTL = uint32(n)
			return err
		case "no_reverse":
			reverse = false
		case "reload":
		default:
			ip, err := netip.ParseAddr(name)
			if err != nil || ip.Zone() != "" || len(args) == 0 {
				return p.fail("hosts: %q is neither an option nor an address followed by names", name)
			}
			for _, a := range args {
				wire, err := Wire(a)
				if err != nil || strings.Contains(a, "*") {
					return p.fail("hosts: %q is not a host name", a)
				}
				h.Names[string(wire)] = append(h.Names[string(wire)], ip.Unmap())
				h.Addresses[ip.Unmap()] = append(h.Addresses[ip.Unmap()], wire)
			}
		}
		return err
	})
	if !reverse {
		h.Addresses = nil
	}
	return err
}

func (p *parser) template() error {
	args := p.d.words[1:]
	if len(args) < 2 {
		return p.fail("template takes a class, a type, and zones")
	}
	t := Template{Class: strings.ToUpper(args[0]), Type: strings.ToUpper(args[1]), Rcode: "NOERROR"}
	var err error
	if t.Zones, err = p.zones(args[2:]); err != nil {
		return err
	}
	err = p.options(func(name string, args []string) (err error) {
		text := strings.Join(args, " ")
		switch name {
		case "match":
			t.Match = append(t.Match, args...)
		case "answer":
			t.Answer = append(t.Answer, text)
		case "additional":
			t.Additional = append(t.Additional, text)
		case "authority":
			t.Authority = append(t.Authority, text)
		case "rcode":
			t.Rcode = strings.ToUpper(text)
		case "fallthrough":
			t.Fallthrough, err = p.fallthroughs(args)
		default:
			return p.fail("template: carob's DNS does not support the option %q", name)
		}
		return err
	})
	p.server.Templates = append(p.server.Templates, t)
	return err
}
