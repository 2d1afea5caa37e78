package crds

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/client-go/tools/cache"
)

// Upstream's priorities of groups that definitions create.
const groupPriority, versionPriority = 1000, 100

// groups are the discovery documents of all groups that definitions create.
type groups struct {
	aggregated  aggregated.ResourceManager
	all         Groups
	definitions listers.CustomResourceDefinitionLister

	mu       sync.RWMutex
	groups   map[string]*discovery.APIGroupHandler
	versions map[schema.GroupVersion]*discovery.APIVersionHandler
}

func newGroups(a aggregated.ResourceManager, all Groups) *groups {
	g := &groups{all: all, groups: map[string]*discovery.APIGroupHandler{},
		versions: map[schema.GroupVersion]*discovery.APIVersionHandler{}}
	if a != nil {
		g.aggregated = a.WithSource(aggregated.CRDSource)
	}
	return g
}

// changed handles a change of a definition. One goroutine calls it.
func (g *groups) changed(old, now any) {
	names := sets.New[string]()
	for _, o := range []any{old, now} {
		if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = t.Obj
		}
		if d, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
			names.Insert(d.Spec.Group)
		}
	}
	for group := range names {
		g.refresh(group)
	}
}

// refresh builds a group's documents.
func (g *groups) refresh(group string) {
	found := map[string][]apidiscoveryv2.APIResourceDiscovery{}
	legacy := map[string][]metav1.APIResource{}
	all, err := g.definitions.List(labels.Everything())
	if err != nil {
		return // a lister of an informer never fails
	}
	slices.SortFunc(all,
		func(a, b *apiextensionsv1.CustomResourceDefinition) int { return cmp.Compare(a.Name, b.Name) })
	for _, d := range all {
		if d.Spec.Group != group || !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
			continue
		}
		for i := range d.Spec.Versions {
			if v := &d.Spec.Versions[i]; v.Served {
				r, l := describe(d, v)
				found[v.Name] = append(found[v.Name], r)
				legacy[v.Name] = append(legacy[v.Name], l...)
			}
		}
	}
	versions := make([]string, 0, len(found))
	for v := range found {
		versions = append(versions, v)
	}
	slices.SortFunc(versions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
	doc := metav1.APIGroup{Name: group}
	for _, v := range versions {
		doc.Versions = append(doc.Versions, metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + v, Version: v})
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	for gv := range g.versions {
		if gv.Group == group && found[gv.Version] == nil {
			delete(g.versions, gv)
			g.aggregated.RemoveGroupVersion(metav1.GroupVersion(gv))
		}
	}
	if len(versions) == 0 {
		if g.groups[group] != nil {
			delete(g.groups, group)
			g.all.RemoveGroup(group)
			g.aggregated.RemoveGroup(group)
		}
		return
	}
	doc.PreferredVersion = doc.Versions[0]
	g.groups[group] = discovery.NewAPIGroupHandler(apiextensionsapiserver.Codecs, doc)
	g.all.AddGroup(doc, groupPriority)
	for _, v := range versions {
		gv, list := schema.GroupVersion{Group: group, Version: v}, legacy[v]
		g.versions[gv] = discovery.NewAPIVersionHandler(apiextensionsapiserver.Codecs, gv,
			discovery.APIResourceListerFunc(func() []metav1.APIResource { return list }))
		g.aggregated.AddGroupVersion(group,
			apidiscoveryv2.APIVersionDiscovery{Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Version: v,
				Resources: found[v]})
		g.aggregated.SetGroupVersionPriority(metav1.GroupVersion(gv), groupPriority, versionPriority)
	}
}

// describe returns one version of a definition in both forms of discovery.
func describe(d *apiextensionsv1.CustomResourceDefinition,
	v *apiextensionsv1.CustomResourceDefinitionVersion) (apidiscoveryv2.APIResourceDiscovery, []metav1.APIResource) {
	verbs := metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	if apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Terminating) {
		verbs = metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	}
	names, scope := d.Status.AcceptedNames, apidiscoveryv2.ScopeCluster
	namespaced := d.Spec.Scope == apiextensionsv1.NamespaceScoped
	if namespaced {
		scope = apidiscoveryv2.ScopeNamespace
	}
	kind := metav1.GroupVersionKind{Group: d.Spec.Group, Version: v.Name, Kind: names.Kind}
	r := apidiscoveryv2.APIResourceDiscovery{Resource: names.Plural, SingularResource: names.Singular, Scope: scope,
		ResponseKind: &kind,
		Verbs:        verbs, ShortNames: names.ShortNames, Categories: names.Categories}
	storage := ""
	for _, o := range d.Spec.Versions {
		if o.Storage {
			storage = discovery.StorageVersionHash(d.Spec.Group, o.Name, d.Spec.Names.Kind)
		}
	}
	l := []metav1.APIResource{{Name: names.Plural, SingularName: names.Singular, Namespaced: namespaced,
		Kind: names.Kind, Verbs: verbs,
		ShortNames: names.ShortNames, Categories: names.Categories, StorageVersionHash: storage}}
	sub := func(name string, kind metav1.GroupVersionKind, own bool) {
		verbs := metav1.Verbs{"get", "patch", "update"}
		r.Subresources = append(r.Subresources,
			apidiscoveryv2.APISubresourceDiscovery{Subresource: name, ResponseKind: &kind, Verbs: verbs})
		entry := metav1.APIResource{Name: names.Plural + "/" + name, Namespaced: namespaced, Kind: kind.Kind,
			Verbs: verbs}
		if !own {
			entry.Group, entry.Version = kind.Group, kind.Version
		}
		l = append(l, entry)
	}
	if s := v.Subresources; s != nil {
		if s.Status != nil {
			sub("status", kind, true)
		}
		if s.Scale != nil {
			sub("scale", metav1.GroupVersionKind{Group: autoscalingv1.GroupName, Version: "v1", Kind: "Scale"}, false)
		}
	}
	return r, l
}

// ServeHTTP serves /apis/GROUP and /apis/GROUP/VERSION.
func (g *groups) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var h http.Handler
	g.mu.RLock()
	switch parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/"); {
	case len(parts) == 2:
		if d := g.groups[parts[1]]; d != nil {
			h = d
		}
	case len(parts) == 3:
		if d := g.versions[schema.GroupVersion{Group: parts[1], Version: parts[2]}]; d != nil {
			h = d
		}
	}
	g.mu.RUnlock()
	if h == nil {
		h = http.NotFoundHandler()
	}
	h.ServeHTTP(w, r)
}
