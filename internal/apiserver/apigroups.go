package apiserver

import (
	"fmt"
	"slices"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"carob/internal/apiserver/crds"
	"carob/internal/apiserver/lists"
	"carob/internal/kinds/mergeschema"
	"carob/internal/kinds/openapi"
	"carob/internal/kinds/scheme"
)

// installGroups adds the routes of every group version and its discovery documents. It does what
// the library's own installer does, except that the types for field ownership and the OpenAPI
// documents are generated at build time.
func (s *Server) installGroups(c *genericapiserver.Config,
	groups map[schema.GroupVersion]map[string]rest.Storage) error {
	versions := make([]schema.GroupVersion, 0, len(groups))
	for gv := range groups {
		versions = append(versions, gv)
	}
	slices.SortFunc(versions, func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) })
	s.versions = versions
	types := mergeschema.NewTypeConverter(s.set.External)
	ours := lists.Serializer(s.set.Codecs, &s.lists)
	for _, gv := range versions {
		served := map[string][]string{}
		for path := range groups[gv] {
			served[path] = []string{gv.String()}
		}
		known, codecs := s.set.Scheme, ours
		if gv == apiextensionsv1.SchemeGroupVersion { // a registry of its own
			known, codecs = apiextensionsapiserver.Scheme, crds.Serializer()
		}
		v := &genericapi.APIGroupVersion{
			GroupVersion: gv, Root: genericapiserver.APIGroupPrefix, Storage: groups[gv],
			AllServedVersionsByResource: served,
			OptionsExternalVersion:      &schema.GroupVersion{Version: "v1"}, ParameterCodec: s.set.ParameterCodec,
			Serializer: codecs,
			Creater:    growStackCreater{known}, Convertor: known, ConvertabilityChecker: known,
			UnsafeConvertor: scheme.SharingConvertor(known),
			Defaulter:       known, Typer: known, Namer: runtime.Namer(meta.NewAccessor()), TypeConverter: types,
			EquivalentResourceRegistry: s.generic.EquivalentResourceRegistry, Admit: c.AdmissionControl,
			Authorizer:          s.generic.Authorizer,
			MinRequestTimeout:   time.Duration(c.MinRequestTimeout) * time.Second,
			MaxRequestBodyBytes: c.MaxRequestBodyBytes,
		}
		if gv.Group == "" {
			v.Root = genericapiserver.DefaultLegacyAPIPrefix
		}
		found, _, err := v.InstallREST(s.generic.Handler.GoRestfulContainer)
		if err != nil {
			return fmt.Errorf("install API %v: %w", gv, err)
		}
		s.discover(c, gv, versions,
			apidiscoveryv2.APIVersionDiscovery{Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Version: gv.Version,
				Resources: found})
	}
	return openapi.Install(s.generic.Handler.NonGoRestfulMux, s.ext.crds, s.ext.aggregation)
}

// discover publishes a group version; all are the versions of all groups.
func (s *Server) discover(c *genericapiserver.Config, gv schema.GroupVersion, all []schema.GroupVersion,
	d apidiscoveryv2.APIVersionDiscovery) {
	container := s.generic.Handler.GoRestfulContainer
	if gv.Group == "" {
		s.generic.AggregatedLegacyDiscoveryGroupManager.AddGroupVersion("", d)
		legacy := discovery.NewLegacyRootAPIHandler(c.DiscoveryAddresses, s.generic.Serializer,
			genericapiserver.DefaultLegacyAPIPrefix)
		wrapped := aggregated.WrapAggregatedDiscoveryToHandler(legacy, s.generic.AggregatedLegacyDiscoveryGroupManager,
			s.generic.AggregatedLegacyDiscoveryGroupManager)
		container.Add(wrapped.GenerateWebService(genericapiserver.DefaultLegacyAPIPrefix, metav1.APIVersions{}))
		return
	}
	s.generic.AggregatedDiscoveryGroupManager.AddGroupVersion(gv.Group, d)
	groupPriority, versionPriority := priority(gv)
	s.generic.AggregatedDiscoveryGroupManager.SetGroupVersionPriority(metav1.GroupVersion(gv), int(groupPriority),
		int(versionPriority))
	group := metav1.APIGroup{Name: gv.Group}
	for _, known := range s.set.External.PrioritizedVersionsForGroup(gv.Group) {
		if slices.Contains(all, known) {
			group.Versions = append(group.Versions,
				metav1.GroupVersionForDiscovery{GroupVersion: known.String(), Version: known.Version})
		}
	}
	group.PreferredVersion = group.Versions[0]
	if gv.Version != group.PreferredVersion.Version {
		return // published with the preferred version
	}
	s.groups.AddGroup(group, groupPriority)
	handler := discovery.NewAPIGroupHandler(s.generic.Serializer, group)
	path := genericapiserver.APIGroupPrefix + "/" + gv.Group
	s.generic.Handler.NonGoRestfulMux.Handle(path, handler)
	s.generic.Handler.NonGoRestfulMux.UnlistedHandle(path+"/", handler)
}
