package aggregation

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	clientset "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

// Config is what aggregation needs from the API server.
type Config struct {
	// Client returns the configuration of an in-process client with all permissions.
	Client func() *restclient.Config
	// Resolver finds the endpoints of services.
	Resolver webhookutil.ServiceResolver
	// FrontProxy returns the proxy's client certificate; it is called for each connection.
	FrontProxy func() (*tls.Certificate, error)
	// Aggregated and Groups get the API groups.
	Aggregated aggregated.ResourceManager
	Groups     Groups
	Serializer runtime.NegotiatedSerializer
	// Taken, unless nil, is called when other servers start and stop serving a group.
	Taken func(group string, taken bool)
	// Lasts reports whether a request may last long; all others end after Timeout. A client in this process has no time
	// limit of its own.
	Lasts   func(*http.Request) bool
	Timeout time.Duration
	// Own reports whether a request is made by a part of this process, which has the whole answer in memory.
	Own func(context.Context) bool
	// Next handles requests that no other server serves.
	Next http.Handler
}

// Groups is the list of all API groups.
type Groups interface {
	AddGroup(g metav1.APIGroup, priority int32)
	RemoveGroup(name string)
}

// Server proxies requests to the API servers that APIServices name.
type Server struct {
	cfg        Config
	aggregated aggregated.ResourceManager
	wake       chan struct{} // has a value if there is something to check

	order  sync.Mutex        // held during a change
	newest map[string]uint64 // the versions of the last changes, by name; also of deleted APIServices

	mu      sync.RWMutex
	remotes map[schema.GroupVersion]*remote
	groups  map[string]*discovery.APIGroupHandler
	running int // checks
	checks  sync.WaitGroup
}

// New returns a server without APIServices.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, wake: make(chan struct{}, 1), newest: map[string]uint64{},
		remotes: map[schema.GroupVersion]*remote{}, groups: map[string]*discovery.APIGroupHandler{}}
	if cfg.Aggregated != nil {
		s.aggregated = cfg.Aggregated.WithSource(aggregated.AggregatorSource)
	}
	return s
}

const (
	// How often an available server is checked, and an unavailable one.
	healthyPeriod, failurePeriod = 30 * time.Second, time.Second
	maxFailurePeriod             = 30 * time.Second
)

// Written updates an APIService that was stored or deleted. Requests at the same time may call it in another order than
// they changed the object: what is older than the last change is ignored, or a server would get requests, and its group
// would be listed, that no APIService names any more.
func (s *Server) Written(o *apiregistrationv1.APIService, exists bool) {
	s.order.Lock()
	defer s.order.Unlock()
	version, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if last := s.newest[o.Name]; err == nil && (version < last || version == last && exists && last > 0) {
		return
	}
	s.newest[o.Name] = version
	if exists {
		s.changed(o.Name, o)
	} else {
		s.changed(o.Name, nil)
	}
}

// changed updates an APIService; o is nil if it was deleted.
func (s *Server) changed(name string, o *apiregistrationv1.APIService) {
	switch {
	case o == nil:
		availability().ForgetAPIService(name)
	case o.Spec.Service == nil:
		availability().SetAPIServiceAvailable(name)
	}
	v, group, _ := strings.Cut(name, ".")
	gv := schema.GroupVersion{Group: group, Version: v}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.remotes[gv]
	switch {
	case o == nil || o.Spec.Service == nil:
		if old == nil {
			return
		}
		delete(s.remotes, gv)
		s.list(group)
		s.aggregated.RemoveGroupVersion(metav1.GroupVersion(gv))
		return
	case old != nil && old.serves(o):
		return
	}
	r := newRemote(s.cfg, o, old)
	s.remotes[gv] = r
	s.list(group)
	if old == nil {
		// Nothing is known of its kinds, after a restart too. A version that was missing would have no kinds: the
		// deletion of a namespace would end without their objects.
		s.aggregated.AddGroupVersion(group, stale(r.spec.Version))
		s.prioritize(r)
	}
	s.signal()
}

func (s *Server) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// list builds the group's discovery documents. mu is held.
func (s *Server) list(group string) {
	doc := metav1.APIGroup{Name: group}
	var found []*remote
	for gv, r := range s.remotes {
		if gv.Group == group {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		if s.groups[group] != nil {
			delete(s.groups, group)
			s.cfg.Groups.RemoveGroup(group)
			s.taken(group, false)
		}
		return
	}
	s.taken(group, true)
	slices.SortFunc(found, func(a, b *remote) int {
		if d := b.spec.VersionPriority - a.spec.VersionPriority; d != 0 {
			return int(d)
		}
		return version.CompareKubeAwareVersionStrings(b.spec.Version, a.spec.Version)
	})
	for _, r := range found {
		doc.Versions = append(doc.Versions,
			metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + r.spec.Version, Version: r.spec.Version})
	}
	doc.PreferredVersion = doc.Versions[0]
	s.groups[group] = discovery.NewAPIGroupHandler(s.cfg.Serializer, doc)
	s.cfg.Groups.AddGroup(doc,
		slices.MaxFunc(found,
			func(a, b *remote) int {
				return int(a.spec.GroupPriorityMinimum - b.spec.GroupPriorityMinimum)
			}).spec.GroupPriorityMinimum)
}

func (s *Server) taken(group string, taken bool) {
	if s.cfg.Taken != nil {
		s.cfg.Taken(group, taken)
	}
}

// ServeHTTP serves paths below /apis.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.SplitN(strings.Trim(r.URL.Path, "/"), "/", 4)
	s.mu.RLock()
	h := s.cfg.Next
	switch {
	case len(s.remotes) == 0:
	case len(parts) == 2:
		if g := s.groups[parts[1]]; g != nil {
			h = g
		}
	case len(parts) > 2:
		if m := s.remotes[schema.GroupVersion{Group: parts[1], Version: parts[2]}]; m != nil {
			h = m
		}
	}
	s.mu.RUnlock()
	h.ServeHTTP(w, r)
}

// Run checks the servers until ctx ends. It waits while there are none.
func (s *Server) Run(ctx context.Context) {
	client, err := clientset.NewForConfig(s.cfg.Client())
	if err != nil {
		klog.FromContext(ctx).Error(err, "The controller of aggregated API servers has failed")
		return
	}
	s.run(ctx, client)
}

func (s *Server) run(ctx context.Context, client clientset.Interface) {
	defer s.checks.Wait()
	timer := time.NewTimer(0)
	<-timer.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		if next := s.look(ctx, client); next > 0 {
			timer.Reset(next)
		} else {
			timer.Stop()
		}
	}
}

// maxChecks is how many servers are checked at a time. One that hangs takes 15 s at most.
const maxChecks = 32

// look starts the checks that are due, and returns the time of the next one, 0 for none before a wake-up: the end of a
// check is one. A server that hangs does not delay the checks of others.
func (s *Server) look(ctx context.Context, client clientset.Interface) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var waiting []*remote
	for _, r := range s.remotes {
		if !r.busy {
			waiting = append(waiting, r)
		}
	}
	slices.SortFunc(waiting, func(a, b *remote) int { return a.due.Compare(b.due) })
	now := time.Now()
	for _, r := range waiting {
		if now.Before(r.due) {
			return r.due.Sub(now)
		}
		if s.running == maxChecks {
			return 0
		}
		r.busy = true
		s.running++
		s.checks.Go(func() { s.check(ctx, client, r) })
	}
	return 0
}

// check checks a server, publishes and reports the result.
func (s *Server) check(ctx context.Context, client clientset.Interface, r *remote) {
	r.check(ctx)
	s.publish(r)
	if err := r.report(ctx, client); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Writing the state of an APIService failed, will retry", "apiService",
			r.name, "err", err)
		r.due = time.Now().Add(failurePeriod)
	}
	s.mu.Lock()
	r.busy = false
	s.running--
	s.mu.Unlock()
	s.signal()
}

// publish puts a server's discovery into the aggregated document.
func (s *Server) publish(r *remote) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	gv := r.groupVersion()
	if s.remotes[gv] != r {
		return // replaced or deleted meanwhile
	}
	s.aggregated.AddGroupVersion(gv.Group, r.discovery())
	s.prioritize(r)
}

func (s *Server) prioritize(r *remote) {
	s.aggregated.SetGroupVersionPriority(metav1.GroupVersion(r.groupVersion()), int(r.spec.GroupPriorityMinimum),
		int(r.spec.VersionPriority))
}
