package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"carob/internal/core/resources"
)

// Node is one node with the pods it counts. The zero value is an unknown node; pods can be
// counted on it before its object arrives.
type Node struct {
	Object *corev1.Node // read only; nil until seen
	Ledger resources.Ledger

	name   string // in the Cluster
	hash   uint64 // of name
	index  int    // in Cluster.nodes
	pods   []*Pod
	ports  []HostPort
	images []nodeImage // of Object, sorted by name

	features features.FeatureSet // that Object declares
}

// Set sets a new version of the node's object.
func (n *Node) Set(object *corev1.Node) {
	if n.Object == nil || !sameImages(n.Object.Status.Images, object.Status.Images) {
		n.images = nodeImages(object.Status.Images)
	}
	if n.Object == nil || !slices.Equal(n.Object.Status.DeclaredFeatures, object.Status.DeclaredFeatures) {
		n.features = features.DefaultFramework.TryMap(object.Status.DeclaredFeatures)
	}
	n.Object = object
	n.Ledger.SetNode(object)
}

// Add adds a pod.
func (n *Node) Add(p *Pod) {
	n.pods = append(n.pods, p)
	n.ports = append(n.ports, p.Ports...)
	n.Ledger.Add(p.Demand)
}

// Remove removes a pod and reports whether the node had it.
func (n *Node) Remove(uid types.UID) bool {
	i := slices.IndexFunc(n.pods, func(p *Pod) bool { return p.Object.UID == uid })
	if i < 0 {
		return false
	}
	p := n.pods[i]
	n.pods = slices.Delete(n.pods, i, i+1)
	for _, port := range p.Ports {
		if j := slices.Index(n.ports, port); j >= 0 {
			n.ports = slices.Delete(n.ports, j, j+1)
		}
	}
	n.Ledger.Remove(p.Demand)
	return true
}

// Pods returns the pods counted on the node; the caller must not change the slice.
func (n *Node) Pods() []*Pod { return n.pods }

// with returns a copy that counts further pods; n stays as it is.
func (n *Node) with(pods []*Pod) *Node {
	c := *n
	c.Ledger = n.Ledger.Clone()
	c.pods, c.ports = slices.Clone(n.pods), slices.Clone(n.ports)
	for _, p := range pods {
		c.Add(p)
	}
	return &c
}

func (n *Node) portTaken(p *Pod) bool {
	for _, want := range p.Ports {
		if slices.ContainsFunc(n.ports, want.conflicts) {
			return true
		}
	}
	return false
}

// label returns the value of a label of the node and whether it has it.
func (n *Node) label(key string) (string, bool) {
	v, ok := n.Object.Labels[key]
	return v, ok
}
