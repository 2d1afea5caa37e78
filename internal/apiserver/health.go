package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"
)

// The names of the checks are kube-apiserver's, which its tests and dashboards use. Each reports on
// the part of carob that does the same job:
//
//	before Run has started it, or while its stored objects are read ─ failed
//	while it runs, or after it has finished ─ ok
//	after it has given up, or ended before the server ─ failed; an error before a retry does not count
const hookPrefix = "poststarthook/"

// Parts of the server, by the names of their checks.
var (
	admissionChecks = []string{hookPrefix + "start-apiserver-admission-initializer"}
	crdChecks       = []string{hookPrefix + "start-apiextensions-informers",
		hookPrefix + "start-apiextensions-controllers", hookPrefix + "crd-informer-synced"}
	aggregationChecks = []string{
		hookPrefix + "start-kube-aggregator-informers", hookPrefix + "apiservice-status-local-available-controller",
		hookPrefix + "apiservice-status-remote-available-controller", hookPrefix + "apiservice-registration-controller",
		hookPrefix + "apiservice-discovery-controller", hookPrefix + "apiservice-openapi-controller",
		hookPrefix + "apiservice-openapiv3-controller",
		hookPrefix + "aggregator-reload-proxy-client-cert",
	}
	policyChecks = []string{hookPrefix + "rbac/bootstrap-roles"}
	groupChecks  = []string{hookPrefix + "kube-apiserver-autoregistration", "autoregister-completion"}
	trustChecks  = []string{hookPrefix + "start-cluster-authentication-info-controller"}
	flowChecks   = []string{hookPrefix + "priority-and-fairness-config-consumer",
		hookPrefix + "priority-and-fairness-filter", hookPrefix + "priority-and-fairness-config-producer"}
	// The kubernetes Service and the default range.
	keeperChecks = []string{hookPrefix + "bootstrap-controller",
		hookPrefix + "start-kubernetes-service-cidr-controller"}
	// Checks that run every few minutes.
	repairChecks = []string{hookPrefix + "start-legacy-token-tracking-controller",
		hookPrefix + "start-service-ip-repair-controllers"}
	// What New has created, and what Run has read, before the server is ready.
	startChecks = []string{hookPrefix + "generic-apiserver-start-informers", hookPrefix + "storage-readiness",
		hookPrefix + "start-system-namespaces-controller", hookPrefix + "scheduling/bootstrap-system-priority-classes"}
)

// conditions are the states of the server's parts, by the names of their checks.
type conditions struct {
	mu     sync.Mutex
	failed map[string]error
}

var errEnded = errors.New("it has ended while the server runs")

// fail records why a part has given up.
func (c *conditions) fail(err error, names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = map[string]error{}
	}
	for _, name := range names {
		c.failed[name] = err
	}
}

func (c *conditions) of(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[name]
}

// checked returns run; its checks fail once it has returned before ctx ends.
func (c *conditions) checked(run func(context.Context), names ...string) func(context.Context) {
	return func(ctx context.Context) {
		run(ctx)
		if ctx.Err() == nil {
			c.fail(errEnded, names...)
		}
	}
}

var errStarting = errors.New("the stored objects are being read")

func (s *Server) isReady() error {
	select {
	case <-s.ready:
		return nil
	default:
		return errStarting
	}
}

// healthChecks are the checks of /healthz, /livez, and /readyz. They wait for nothing but an
// external etcd and key servers, and /livez does not include those: a restarted process would not
// find them either.
func (s *Server) healthChecks() (health, live, ready []healthz.HealthChecker) {
	etcd := func(name string) healthz.HealthChecker {
		return healthz.NamedCheck(name, func(r *http.Request) error { return s.engine.Check(r.Context()) })
	}
	keys := s.encryption.HealthChecks()
	log := &logCheck{flush: klog.Flush, now: time.Now}
	var parts []healthz.HealthChecker
	for _, names := range [][]string{admissionChecks, startChecks[:1], flowChecks[:2], crdChecks, startChecks[1:3],
		trustChecks,
		repairChecks, policyChecks, startChecks[3:], flowChecks[2:], keeperChecks, aggregationChecks, groupChecks} {
		for _, name := range names {
			parts = append(parts, healthz.NamedCheck(name, func(*http.Request) error {
				if err := s.isReady(); err != nil {
					return err
				}
				return s.conditions.of(name)
			}))
		}
	}
	put := func(checks ...healthz.HealthChecker) []healthz.HealthChecker {
		return append(append([]healthz.HealthChecker{healthz.PingHealthz, log}, checks...), parts...)
	}
	health = append(put(etcd("etcd")), keys...)
	live = put(healthz.NamedCheck("etcd", func(*http.Request) error { return s.engine.Err() }))
	ready = append(put(etcd("etcd"), etcd("etcd-readiness"),
		healthz.NamedCheck("informer-sync", func(*http.Request) error {
			if err := s.isReady(); err != nil {
				return err
			}
			for gr, st := range s.stores {
				if err := st.ReadinessCheck(); err != nil {
					return fmt.Errorf("%v: %w", gr, err)
				}
			}
			return nil
		})), keys...)
	return health, live, ready
}

// logCheck fails while a flush of the log takes longer than logTime. It flushes on request, at most
// once in logPeriod.
type logCheck struct {
	flush func()
	now   func() time.Time

	mu       sync.Mutex
	started  time.Time // of the last flush
	flushing bool
}

const logPeriod, logTime = time.Minute, 2 * time.Minute

// Name implements healthz.HealthChecker.
func (*logCheck) Name() string { return "log" }

// Check implements healthz.HealthChecker.
func (l *logCheck) Check(*http.Request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := l.now().Sub(l.started)
	if l.flushing {
		if since >= logTime {
			return errors.New("logging blocked")
		}
		return nil
	}
	if l.started.IsZero() || since >= logPeriod {
		l.started, l.flushing = l.now(), true
		go func() {
			l.flush()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.flushing = false
		}()
	}
	return nil
}
