package apiserver

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// apiGroupList is the list of API groups at /apis, by priority, the highest first: clients that
// know only a kind's short name use the first group that has it.
type apiGroupList struct {
	codecs runtime.NegotiatedSerializer

	mu     sync.RWMutex
	groups map[string]rankedAPIGroup
}

type rankedAPIGroup struct {
	metav1.APIGroup
	priority int32
}

func newAPIGroupList(codecs runtime.NegotiatedSerializer) *apiGroupList {
	return &apiGroupList{codecs: codecs, groups: map[string]rankedAPIGroup{}}
}

// AddGroup adds or replaces a group. priority is its APIServices' groupPriorityMinimum.
func (l *apiGroupList) AddGroup(g metav1.APIGroup, priority int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.groups[g.Name] = rankedAPIGroup{g, priority}
}

// RemoveGroup removes a group.
func (l *apiGroupList) RemoveGroup(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.groups, name)
}

func (l *apiGroupList) list() *metav1.APIGroupList {
	l.mu.RLock()
	all := slices.Collect(maps.Values(l.groups))
	l.mu.RUnlock()
	slices.SortFunc(all, func(a, b rankedAPIGroup) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.Name, b.Name))
	})
	out := &metav1.APIGroupList{Groups: make([]metav1.APIGroup, len(all))}
	for i := range all {
		out.Groups[i] = all[i].APIGroup
	}
	return out
}

// ServeHTTP answers /apis.
func (l *apiGroupList) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	responsewriters.WriteObjectNegotiated(l.codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w,
		r, http.StatusOK, l.list(), false)
}
