package dns

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	core "carob/internal/core/netplan/dns"
)

// metrics are figures under CoreDNS's names (N9.10 to N9.13). Make them with newMetrics.
type metrics struct {
	mu    sync.Mutex
	zones map[string]*zoneMetrics

	cacheRequests, cacheMisses  prometheus.Counter
	cacheHits, cacheEvictions   [2]prometheus.Counter
	prefetches, stale           prometheus.Counter
	rejects, broken, overloads  prometheus.Counter
	healthFailures              *prometheus.CounterVec
	forwardSeconds, programming *prometheus.HistogramVec
	reloadFailed                prometheus.Counter
	entries                     func() [2]int // of the cache

	all []prometheus.Collector
}

// The plugins that answer.
const (
	pluginNone = iota
	pluginKubernetes
	pluginCache
	pluginForward
	pluginHosts
	pluginTemplate
	plugins
)

// ownServer is the label `server` of all figures: there is one server.
const ownServer = "dns://:53"

const rcodes = 17

// seconds are CoreDNS's buckets.
func seconds() []float64 { return prometheus.ExponentialBuckets(0.00025, 2, 16) }

func sizes() []float64 {
	return []float64{0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3}
}

func newMetrics() *metrics {
	m := &metrics{zones: map[string]*zoneMetrics{}, entries: func() [2]int { return [2]int{} }}
	counter := func(subsystem, name, help string, labels prometheus.Labels) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "coredns", Subsystem: subsystem, Name: name,
			Help: help, ConstLabels: labels})
		m.all = append(m.all, c)
		return c
	}
	cacheLabels := func(more ...string) prometheus.Labels {
		l := prometheus.Labels{"server": ownServer, "zones": ".", "view": ""}
		if len(more) > 0 {
			l["type"] = more[0]
		}
		return l
	}
	m.cacheRequests = counter("cache", "requests_total", "The count of cache requests.", cacheLabels())
	m.cacheMisses = counter("cache", "misses_total", "The count of cache misses.", cacheLabels())
	m.prefetches = counter("cache", "prefetch_total", "The number of times the cache has refreshed a cached item.",
		cacheLabels())
	m.stale = counter("cache", "served_stale_total", "The number of requests served from stale cache entries.",
		cacheLabels())
	for kind, name := range []string{"success", "denial"} {
		m.cacheHits[kind] = counter("cache", "hits_total", "The count of cache hits.", cacheLabels(name))
		m.cacheEvictions[kind] = counter("cache", "evictions_total", "The count of cache evictions.", cacheLabels(name))
	}
	m.rejects = counter("forward", "max_concurrent_rejects_total",
		"Counter of the number of queries rejected because the concurrent queries were at maximum.", nil)
	m.broken = counter("forward", "healthcheck_broken_total",
		"Counter of the number of complete failures of the healthchecks.", nil)
	m.overloads = counter("carob", "overloads_total",
		"Counter of queries that were refused because too many wait for other servers.", nil)
	m.reloadFailed = counter("reload", "failed_total", "Counter of the number of failed reload attempts.", nil)
	m.healthFailures = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "coredns", Subsystem: "proxy",
		Name: "healthcheck_failures_total", Help: "Counter of the number of failed healthchecks."},
		[]string{"proxy_name", "to"})
	m.forwardSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "coredns", Subsystem: "proxy",
		Name: "request_duration_seconds", Help: "Histogram of the time each request took.", Buckets: seconds()},
		[]string{"proxy_name", "to", "rcode"})
	m.programming = prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "coredns", Subsystem: "kubernetes",
		Name:    "dns_programming_duration_seconds",
		Help:    "Histogram of the time (in seconds) it took to program a dns instance.",
		Buckets: append([]float64{0}, prometheus.ExponentialBuckets(0.001, 2, 20)...)}, []string{"service_kind"})
	m.all = append(m.all, m.healthFailures, m.forwardSeconds, m.programming)
	return m
}

func (m *metrics) looked(h *hit, ok bool) {
	m.cacheRequests.Inc()
	if ok {
		m.cacheHits[h.kind].Inc()
	} else {
		m.cacheMisses.Inc()
	}
}

func (m *metrics) evicted(kind int) { m.cacheEvictions[kind].Inc() }
func (m *metrics) unhealthy(u core.Upstream) {
	m.healthFailures.WithLabelValues("forward", u.Addr.String()).Inc()
}
func (m *metrics) forwarded(u core.Upstream, answer *dns.Msg, took time.Duration) {
	rcode := "SERVFAIL"
	if answer != nil {
		rcode = dns.RcodeToString[answer.Rcode]
	}
	m.forwardSeconds.WithLabelValues("forward", u.Addr.String(), rcode).Observe(took.Seconds())
}

// zoneMetrics are the metrics of one zone. The counters that every query changes are plain numbers.
type zoneMetrics struct {
	zone      string
	requests  [2][2][typesKnown + 1]atomic.Uint64 // by UDP or TCP, family, type
	do        atomic.Uint64
	responses [plugins][rcodes + 1]atomic.Uint64
	seconds   prometheus.Histogram
	request   [2]prometheus.Histogram
	response  [2]prometheus.Histogram
}

// typesKnown have their own label; all others are "other", because clients choose them.
const typesKnown = 14

func types() [typesKnown]uint16 {
	return [typesKnown]uint16{dns.TypeA, dns.TypeAAAA, dns.TypeMX, dns.TypeSOA, dns.TypeCNAME, dns.TypePTR, dns.TypeTXT,
		dns.TypeNS, dns.TypeSRV, dns.TypeDS, dns.TypeDNSKEY, dns.TypeRRSIG, dns.TypeANY, dns.TypeHTTPS}
}

func typeIndex(t uint16) int {
	for i, known := range types() {
		if t == known {
			return i
		}
	}
	return typesKnown
}

// zone returns the metrics of a zone; they outlive a configuration.
func (m *metrics) zone(zone string) *zoneMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.zones[zone]; f != nil {
		return f
	}
	labels := func(proto string) prometheus.Labels {
		l := prometheus.Labels{"server": ownServer, "zone": zone, "view": ""}
		if proto != "" {
			l["proto"] = proto
		}
		return l
	}
	f := &zoneMetrics{zone: zone, seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "coredns",
		Subsystem: "dns", Name: "request_duration_seconds", Buckets: seconds(), ConstLabels: labels(""),
		Help: "Histogram of the time (in seconds) each request took per zone."})}
	for i, proto := range []string{"udp", "tcp"} {
		f.request[i] = prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "coredns", Subsystem: "dns",
			Name: "request_size_bytes", Buckets: sizes(), ConstLabels: labels(proto),
			Help: "Size of the EDNS0 UDP buffer in bytes (64K for TCP) per zone and protocol."})
		f.response[i] = prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "coredns", Subsystem: "dns",
			Name: "response_size_bytes", Buckets: sizes(), ConstLabels: labels(proto),
			Help: "Size of the returned response in bytes."})
	}
	m.zones[zone] = f
	return f
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// done counts a question and its answer.
func (f *zoneMetrics) done(q *core.Query, from netip.Addr, udp bool, size int, answer []byte, plugin int,
	took time.Duration) {
	proto := index(!udp)
	f.requests[proto][index(from.Is6())][typeIndex(uint16(q.Type))].Add(1)
	if q.DO {
		f.do.Add(1)
	}
	rcode := int(answer[3] & 0xf)
	f.responses[plugin][min(rcode, rcodes)].Add(1)
	f.seconds.Observe(took.Seconds())
	f.request[proto].Observe(float64(size))
	f.response[proto].Observe(float64(len(answer)))
}

// rejected counts a question of no zone, and returns the answer.
func (m *metrics) rejected(q *core.Query, from netip.Addr, udp bool, answer []byte, started time.Time) []byte {
	m.zone("dropped").done(q, from, udp, 0, answer, pluginNone, time.Since(started))
	return answer
}

// Describe implements prometheus.Collector: what is collected depends on the configuration.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(out)
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("coredns_"+name, help, labels, nil)
	}
	entries := desc("cache_entries", "The number of elements in the cache.", "server", "type", "zones", "view")
	for kind, n := range m.entries() {
		out <- prometheus.MustNewConstMetric(entries, prometheus.GaugeValue, float64(n), ownServer,
			[]string{"success", "denial"}[kind], ".", "")
	}
	requests := desc("dns_requests_total", "Counter of DNS requests made per zone, protocol and family.", "server", "zone",
		"view", "proto", "family", "type")
	responses := desc("dns_responses_total", "Counter of response status codes.", "server", "zone", "view", "rcode",
		"plugin")
	do := desc("dns_do_requests_total", "Counter of DNS requests with DO bit set per zone.", "server", "zone", "view")
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		if n > 0 {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
		}
	}
	names := types()
	m.mu.Lock()
	defer m.mu.Unlock()
	for zone, f := range m.zones {
		for p, proto := range []string{"udp", "tcp"} {
			for fam, family := range []string{"1", "2"} {
				for t := range f.requests[p][fam] {
					name := "other"
					if t < typesKnown {
						name = dns.TypeToString[names[t]]
					}
					count(requests, f.requests[p][fam][t].Load(), ownServer, zone, "", proto, family, name)
				}
			}
			f.request[p].Collect(out)
			f.response[p].Collect(out)
		}
		for p, plugin := range []string{"", "kubernetes", "cache", "forward", "hosts", "template"} {
			for r := range f.responses[p] {
				count(responses, f.responses[p][r].Load(), ownServer, zone, "", dns.RcodeToString[r], plugin)
			}
		}
		count(do, f.do.Load(), ownServer, zone, "")
		f.seconds.Collect(out)
	}
}
