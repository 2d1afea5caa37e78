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

// groupList is the list of API groups at /apis, in the order of their priorities, the greatest first: clients that
// know a kind's short name only take the first group that has it.
type groupList struct {
	codecs runtime.NegotiatedSerializer

	mu     sync.RWMutex
	groups map[string]rankedGroup
}

type rankedGroup struct {
	metav1.APIGroup
	priority int32
}

func newGroupList(codecs runtime.NegotiatedSerializer) *groupList {
	return &groupList{codecs: codecs, groups: map[string]rankedGroup{}}
}

// AddGroup adds or replaces a group. priority is its APIServices' groupPriorityMinimum.
func (l *groupList) AddGroup(g metav1.APIGroup, priority int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.groups[g.Name] = rankedGroup{g, priority}
}

// RemoveGroup takes a group away.
func (l *groupList) RemoveGroup(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.groups, name)
}

func (l *groupList) list() *metav1.APIGroupList {
	l.mu.RLock()
	all := slices.Collect(maps.Values(l.groups))
	l.mu.RUnlock()
	slices.SortFunc(all, func(a, b rankedGroup) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.Name, b.Name))
	})
	out := &metav1.APIGroupList{Groups: make([]metav1.APIGroup, len(all))}
	for i := range all {
		out.Groups[i] = all[i].APIGroup
	}
	return out
}

// ServeHTTP answers /apis.
func (l *groupList) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	responsewriters.WriteObjectNegotiated(l.codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w, r, http.StatusOK, l.list(), false)
}
