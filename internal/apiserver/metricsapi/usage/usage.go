// Package usage serves metrics.k8s.io: the CPU and memory usage of nodes and pods, from the values
// of the node agents (W8.A). The API server drives it. It must never run anything without a
// request, and stops serving the group when an APIService assigns it to another server.
//
// Contract: docs/spec/workloads.md.
package usage

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/emicklei/go-restful/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"carob/internal/kinds/table"
)

// Group is the name of the API group.
const Group = metrics.GroupName

// groupPriority and versionPriority are those of metrics-server's APIService.
const (
	groupPriority   = 100
	versionPriority = 100
)

// Config is what the group needs from the API server.
type Config struct {
	Reader     Reader
	Sampler    *Sampler
	Authorizer authorizer.UnconditionalAuthorizer
	// Groups and Aggregated list the group while it is served here.
	Groups interface {
		AddGroup(g metav1.APIGroup, priority int32)
	}
	Aggregated aggregated.ResourceManager
	// Next handles all other requests.
	Next http.Handler
}

// Server serves the group.
type Server struct {
	cfg      Config
	handler  http.Handler
	group    metav1.APIGroup
	versions []apidiscoveryv2.APIVersionDiscovery
	away     atomic.Bool // another server serves the group
}

// New returns a server and lists the group.
func New(cfg Config) (*Server, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	f := &measurements{reader: cfg.Reader, sampler: cfg.Sampler}
	storage := map[string]rest.Storage{
		"pods":  podStorage{f, table.NewConvertor(table.Kind{Columns: columns, Row: podRow})},
		"nodes": nodeStorage{f, table.NewConvertor(table.Kind{Columns: columns, Row: nodeRow})},
	}
	served := []schema.GroupVersion{metricsv1.SchemeGroupVersion, metricsv1beta1.SchemeGroupVersion} // W8.2
	paths := map[string][]string{}
	for path := range storage {
		for _, gv := range served {
			paths[path] = append(paths[path], gv.String())
		}
	}
	s := &Server{cfg: cfg, group: metav1.APIGroup{Name: Group}}
	container := restful.NewContainer()
	container.Router(restful.CurlyRouter{})
	container.RecoverHandler(nil)
	container.DoNotRecover(true) // the server's own filter does this
	for _, gv := range served {
		v := &genericapi.APIGroupVersion{
			GroupVersion: gv, Root: "/apis", Storage: storage, AllServedVersionsByResource: paths,
			OptionsExternalVersion: &schema.GroupVersion{Version: "v1"},
			ParameterCodec:         runtime.NewParameterCodec(scheme), Serializer: codecs,
			Creater: scheme, Convertor: scheme, ConvertabilityChecker: scheme,
			UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme),
			Defaulter:       scheme, Typer: scheme, Namer: runtime.Namer(meta.NewAccessor()),
			TypeConverter:              managedfields.NewDeducedTypeConverter(), // nothing is written
			EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(), Authorizer: cfg.Authorizer,
		}
		found, _, err := v.InstallREST(container)
		if err != nil {
			return nil, fmt.Errorf("install API %v: %w", gv, err)
		}
		s.versions = append(s.versions,
			apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Resources: found,
				Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent})
		s.group.Versions = append(s.group.Versions,
			metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version})
	}
	s.group.PreferredVersion = s.group.Versions[0]
	group := discovery.NewAPIGroupHandler(codecs, s.group)
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Trim(r.URL.Path, "/") == "apis/"+Group {
			group.ServeHTTP(w, r)
			return
		}
		container.Dispatch(w, r)
	})
	s.announce()
	return s, nil
}

func (s *Server) announce() {
	s.cfg.Groups.AddGroup(s.group, groupPriority)
	for i, v := range s.versions {
		s.cfg.Aggregated.AddGroupVersion(Group, v)
		s.cfg.Aggregated.SetGroupVersionPriority(metav1.GroupVersion{Group: Group, Version: v.Version}, groupPriority,
			versionPriority-i)
	}
}

// GiveWay sets whether another server serves the group.
func (s *Server) GiveWay(away bool) {
	if s.away.Swap(away) == away {
		return
	}
	if away {
		s.cfg.Aggregated.RemoveGroup(Group)
		return
	}
	s.announce()
}

// ServeHTTP serves paths below /apis.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, ours := strings.CutPrefix(r.URL.Path, "/apis/"+Group)
	if ours && (rest == "" || rest[0] == '/') && !s.away.Load() {
		s.handler.ServeHTTP(w, r)
		return
	}
	s.cfg.Next.ServeHTTP(w, r)
}
