// Package garbage decides which objects are deleted because their owners are gone (owner
// references, foreground and orphan deletion).
//
// It is pure: Graph stores the references between objects and returns the objects to check; Decide
// returns what to do with one of them, given what is stored at that moment. The garbage collector
// controller drives both. It must read the stored object and its owners before it acts, because the
// graph may lag behind.
package garbage

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Object is the metadata of an object that garbage collection needs.
type Object struct {
	schema.GroupKind
	Namespace, Name string // without namespace for a cluster-scoped object
	UID             types.UID
	Owners          []metav1.OwnerReference
	Deleting        bool
	// Orphan and Foreground are the finalizers of the two kinds of deletion that concern
	// dependents.
	Orphan, Foreground bool
}

// New returns the Object for metadata.
func New(kind schema.GroupKind, m metav1.Object) Object {
	return Object{
		GroupKind: kind, Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUID(),
		Owners: m.GetOwnerReferences(), Deleting: m.GetDeletionTimestamp() != nil,
		Orphan:     slices.Contains(m.GetFinalizers(), metav1.FinalizerOrphanDependents),
		Foreground: slices.Contains(m.GetFinalizers(), metav1.FinalizerDeleteDependents),
	}
}

// Waiting reports whether the object stays until its dependents are gone.
func (o *Object) Waiting() bool { return o.Deleting && o.Foreground }

// BlockedBy reports whether d blocks the foreground deletion of an owner.
func (o *Object) BlockedBy(d Object) bool {
	return slices.ContainsFunc(d.Owners, func(r metav1.OwnerReference) bool {
		return r.UID == o.UID && r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
	})
}

// isMeantBy reports whether r, an owner reference of a dependent in the namespace, has the kind,
// name, and namespace of o.
func (o *Object) isMeantBy(r metav1.OwnerReference, namespace string) bool {
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	return err == nil && gv.Group == o.Group && r.Kind == o.Kind && r.Name == o.Name &&
		(o.Namespace == "" || o.Namespace == namespace)
}

// Graph stores the objects that have owners or dependents, or whose deletion concerns dependents.
// It removes all others at once, so its size depends on the number of references, not of objects.
//
// Each change returns the UIDs of the objects to check.
type Graph struct{ nodes map[types.UID]*node }

// node is an object, or only the references to its UID.
//
//	referred to ──Observe, Verified──▶ seen ──Gone──▶ gone (kept while dependents refer to it)
//	     ▲──────────────Relisted────────┘
type node struct {
	Object
	seen       bool
	gone       bool
	dependents map[types.UID]*node
}

// NewGraph returns an empty graph.
func NewGraph() *Graph { return &Graph{nodes: map[types.UID]*node{}} }

// Len returns the number of stored objects.
func (g *Graph) Len() int { return len(g.nodes) }

// Observe adds or updates an object.
func (g *Graph) Observe(o Object) []types.UID {
	n := g.nodes[o.UID]
	if n == nil {
		if !concerns(o) {
			return nil
		}
		n = g.node(o.UID)
	}
	if n.gone {
		return nil // a late event: a UID is never reused
	}
	var look lookList
	before := n.Object
	wasSeen := n.seen
	n.Object, n.seen = o, true
	for _, r := range before.Owners {
		if !slices.ContainsFunc(o.Owners, func(p metav1.OwnerReference) bool { return p.UID == r.UID }) {
			g.unlink(n, r.UID, &look)
		}
	}
	for _, r := range o.Owners {
		owner := g.node(r.UID)
		owner.dependents[o.UID] = n
		if !owner.seen || owner.gone || !owner.isMeantBy(r, o.Namespace) || owner.Waiting() {
			look.add(o.UID)
		}
		if owner.Waiting() && before.UID != "" && owner.BlockedBy(before) != owner.BlockedBy(o) {
			look.add(owner.UID)
		}
	}
	if o.Deleting && (o.Orphan && !(before.Deleting && before.Orphan) || o.Foreground && !before.Waiting()) {
		look.add(o.UID)
		if o.Foreground {
			look.add(n.dependentUIDs()...)
		}
	}
	if !wasSeen {
		for uid, d := range n.dependents { // any order: the result is sorted
			if slices.ContainsFunc(d.Owners,
				func(r metav1.OwnerReference) bool { return r.UID == o.UID && !o.isMeantBy(r, d.Namespace) }) {
				look.add(uid)
			}
		}
	}
	g.trim(n)
	return look.sorted()
}

// Verified adds an owner that was read for a reference. It may be gone by now; then the graph is
// more recent.
func (g *Graph) Verified(o Object) []types.UID {
	if n := g.nodes[o.UID]; n == nil || n.seen {
		return nil
	}
	return g.Observe(o)
}

// Gone records that the object with this UID no longer exists.
func (g *Graph) Gone(uid types.UID) []types.UID {
	n := g.nodes[uid]
	if n == nil || n.gone {
		return nil
	}
	var look lookList
	look.add(n.dependentUIDs()...)
	for _, r := range n.Owners {
		g.unlink(n, r.UID, &look)
	}
	n.gone, n.Owners = true, nil
	g.trim(n)
	return look.sorted()
}

// Relisted records that a recent list of one kind had exactly these objects. A missing object may
// have been created since: the objects that refer to it are returned.
func (g *Graph) Relisted(kind schema.GroupKind, there map[types.UID]bool) []types.UID {
	var look lookList
	for uid, n := range g.nodes { // any order: the result is sorted
		if !n.seen || n.gone || n.GroupKind != kind || there[uid] {
			continue
		}
		n.seen = false
		look.add(uid)
		look.add(n.dependentUIDs()...)
	}
	return look.sorted()
}

// Object returns the object with this UID; false if it is only referred to, or gone.
func (g *Graph) Object(uid types.UID) (Object, bool) {
	n := g.nodes[uid]
	if n == nil || n.UID == "" || n.gone {
		return Object{}, false
	}
	return n.Object, true
}

// Observed reports whether the object with this UID has ever been observed, even if it has been
// deleted since.
func (g *Graph) Observed(uid types.UID) bool {
	n := g.nodes[uid]
	return n != nil && (n.gone || n.UID != "")
}

// Dependents returns the objects that refer to the object with this UID, ordered by UID.
func (g *Graph) Dependents(uid types.UID) []Object {
	n := g.nodes[uid]
	if n == nil {
		return nil
	}
	out := make([]Object, 0, len(n.dependents))
	for _, d := range n.dependents { // any order: sorted below
		out = append(out, d.Object)
	}
	slices.SortFunc(out, func(a, b Object) int { return cmp.Compare(a.UID, b.UID) })
	return out
}

func (g *Graph) node(uid types.UID) *node {
	n := g.nodes[uid]
	if n == nil {
		n = &node{dependents: map[types.UID]*node{}}
		g.nodes[uid] = n
	}
	return n
}

// unlink removes a dependent from an owner, which may have waited for its removal.
func (g *Graph) unlink(n *node, owner types.UID, look *lookList) {
	o := g.nodes[owner]
	if o == nil {
		return
	}
	delete(o.dependents, n.UID)
	if o.Waiting() && !o.gone {
		look.add(owner)
	}
	if o != n {
		if o.UID == "" && len(o.dependents) == 0 {
			delete(g.nodes, owner)
			return
		}
		g.trim(o)
	}
}

// trim removes a node without dependents.
func (g *Graph) trim(n *node) {
	if len(n.dependents) == 0 && (n.gone || !concerns(n.Object)) {
		delete(g.nodes, n.UID)
	}
}

// concerns reports whether an object without dependents must be stored.
func concerns(o Object) bool { return len(o.Owners) > 0 || o.Deleting && (o.Orphan || o.Foreground) }

func (n *node) dependentUIDs() []types.UID {
	out := make([]types.UID, 0, len(n.dependents))
	for uid := range n.dependents { // any order: the callers sort
		out = append(out, uid)
	}
	return out
}

// lookList collects the UIDs of objects to check.
type lookList []types.UID

func (l *lookList) add(uids ...types.UID) { *l = append(*l, uids...) }

func (l lookList) sorted() []types.UID {
	slices.Sort(l)
	return slices.Compact(l)
}
