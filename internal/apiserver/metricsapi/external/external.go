// Package external serves external.metrics.k8s.io/v1beta1 with the values of a part of carob (W8.22). The API server
// drives it. It serves, and lists, the group only while there is a source, and while no APIService assigns the group to
// another server.
//
// Contract: docs/spec/workloads.md, W8.C.
package external

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"

	"carob/internal/base/externalmetrics"
)

// Group is the name of the API group.
const Group = external_metrics.GroupName

// The priorities that metrics adapters give their APIService.
const groupPriority, versionPriority = 100, 100

// Config is what the group needs from the API server.
type Config struct {
	// Groups and Aggregated list the group while it is served here.
	Groups interface {
		AddGroup(g metav1.APIGroup, priority int32)
		RemoveGroup(name string)
	}
	Aggregated aggregated.ResourceManager
	// Next handles all other requests.
	Next http.Handler
}

// Server serves the group.
type Server struct {
	cfg    Config
	codecs runtime.NegotiatedSerializer

	mu     sync.Mutex
	source externalmetrics.Source // nothing is served without one
	away   bool                   // another server serves the group
}

// New returns a server without a source.
func New(cfg Config) *Server {
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		panic(err) // the types are compiled in
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return &Server{cfg: cfg, codecs: serializer.NewCodecFactory(scheme).WithoutConversion()}
}

// Serve serves the values of a source; nil ends it.
func (s *Server) Serve(source externalmetrics.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.serves()
	s.source = source
	s.list(before)
}

// GiveWay sets whether another server serves the group.
func (s *Server) GiveWay(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.serves()
	s.away = away
	s.list(before)
}

func (s *Server) serves() bool { return s.source != nil && !s.away }

// list adds the group to discovery, or removes it. mu is held.
func (s *Server) list(before bool) {
	switch now := s.serves(); {
	case now && !before:
		s.cfg.Groups.AddGroup(group(), groupPriority)
		s.cfg.Aggregated.AddGroupVersion(Group, apidiscoveryv2.APIVersionDiscovery{Version: "v1beta1",
			Resources: found(s.source.Names()), Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent})
		s.cfg.Aggregated.SetGroupVersionPriority(metav1.GroupVersion(v1beta1.SchemeGroupVersion), groupPriority,
			versionPriority)
	case before && !now:
		if !s.away { // otherwise the other server has listed its own
			s.cfg.Groups.RemoveGroup(Group)
		}
		s.cfg.Aggregated.RemoveGroup(Group)
	}
}

func group() metav1.APIGroup {
	v := metav1.GroupVersionForDiscovery{GroupVersion: v1beta1.SchemeGroupVersion.String(), Version: "v1beta1"}
	return metav1.APIGroup{Name: Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
}

func found(names []string) (out []apidiscoveryv2.APIResourceDiscovery) {
	for _, n := range names {
		out = append(out, apidiscoveryv2.APIResourceDiscovery{Resource: n, Scope: apidiscoveryv2.ScopeNamespace,
			Verbs: []string{"get"}, ResponseKind: &metav1.GroupVersionKind{Group: Group, Version: "v1beta1",
				Kind: "ExternalMetricValueList"}})
	}
	return out
}

func resources(names []string) *metav1.APIResourceList {
	out := &metav1.APIResourceList{GroupVersion: v1beta1.SchemeGroupVersion.String()}
	for _, n := range names {
		out.APIResources = append(out.APIResources, metav1.APIResource{Name: n, Namespaced: true,
			Kind: "ExternalMetricValueList", Verbs: metav1.Verbs{"get"}})
	}
	return out
}

// ServeHTTP serves paths below /apis. The request was authorized before.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	s.mu.Lock()
	source, on := s.source, s.serves()
	s.mu.Unlock()
	if !on || len(parts) < 2 || parts[1] != Group {
		s.cfg.Next.ServeHTTP(w, r)
		return
	}
	switch {
	case r.Method != http.MethodGet:
		s.fail(w, r, apierrors.NewMethodNotSupported(schema.GroupResource{Group: Group, Resource: "*"}, r.Method))
	case len(parts) == 2:
		discovery.NewAPIGroupHandler(s.codecs, group()).ServeHTTP(w, r)
	case parts[2] != "v1beta1":
		s.cfg.Next.ServeHTTP(w, r)
	case len(parts) == 3:
		s.write(w, r, schema.GroupVersion{Version: "v1"}, resources(source.Names()))
	case len(parts) == 6 && parts[3] == "namespaces":
		s.values(w, r, source, parts[4], parts[5])
	default:
		s.cfg.Next.ServeHTTP(w, r)
	}
}

func (s *Server) values(w http.ResponseWriter, r *http.Request, source externalmetrics.Source, namespace,
	metric string) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		s.fail(w, r, apierrors.NewBadRequest(fmt.Sprintf("unable to parse the labelSelector: %v", err)))
		return
	}
	all, ok := source.Values(namespace, metric, func(l map[string]string) bool {
		return selector.Matches(labels.Set(l))
	})
	if !ok {
		s.fail(w, r, apierrors.NewNotFound(schema.GroupResource{Group: Group, Resource: "metrics"}, metric))
		return
	}
	out := &v1beta1.ExternalMetricValueList{Items: []v1beta1.ExternalMetricValue{}}
	for _, v := range all {
		milli := math.Ceil(v.Value * 1000)
		if math.IsNaN(milli) || milli < 0 || milli > math.MaxInt32*1000 {
			continue // not a number of requests
		}
		out.Items = append(out.Items, v1beta1.ExternalMetricValue{MetricName: metric, MetricLabels: v.Labels,
			Timestamp: metav1.NewTime(v.At), Value: *resource.NewMilliQuantity(int64(milli), resource.DecimalSI)})
	}
	s.write(w, r, v1beta1.SchemeGroupVersion, out)
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion, o runtime.Object) {
	responsewriters.WriteObjectNegotiated(s.codecs, negotiation.DefaultEndpointRestrictions, gv, w, r, http.StatusOK, o,
		false)
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, s.codecs, v1beta1.SchemeGroupVersion, w, r)
}
