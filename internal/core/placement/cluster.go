package placement

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/volume"
)

// Cluster is the scheduler's snapshot of all nodes and of the pods on them. It is changed only
// by the methods of this file, each at a cost that doesn't grow with the number of pods.
type Cluster struct {
	nodes       []*Node // those whose object is known, in order of arrival
	byName      map[string]*Node
	pods        map[types.UID]*Pod
	byNamespace map[string][]*Pod // counted pods, in no order
	labelled    labelled
	antiAffine  []*Pod // counted pods with required anti-affinity
	attracting  []*Pod // counted pods with preferred or required affinity, which also applies to new pods
	namespaces  map[string]map[string]string
	images      map[string]int                   // nodes that have an image
	nominated   map[string][]*Pod                // by node
	nominatedOn map[types.UID]string             // the node of each of these pods
	repelling   int                              // nominated pods with required anti-affinity
	services    map[string]map[string]labels.Set // selectors, by namespace and name
	controllers map[Owner]labels.Selector

	groups     map[string]*group
	topologies map[string]*topology
	nodeLabels map[string]bool // keys of the labels of all nodes; nil: to be computed
	outside    []int32         // topology.of of a key that no node has
	changes    []change
	dropped    uint64 // changes that are no more in changes
	shape      uint64 // counts changes that invalidate groups
	owners     uint64 // counts changes of services and controllers
	uses       uint64
	feasible   []int // buffer for the next decision
}

// NewCluster returns an empty cluster.
func NewCluster() *Cluster {
	return &Cluster{
		byName:      map[string]*Node{},
		pods:        map[types.UID]*Pod{},
		byNamespace: map[string][]*Pod{},
		labelled:    labelled{},
		namespaces:  map[string]map[string]string{},
		images:      map[string]int{},
		nominated:   map[string][]*Pod{},
		nominatedOn: map[types.UID]string{},
		services:    map[string]map[string]labels.Set{},
		controllers: map[Owner]labels.Selector{},
		groups:      map[string]*group{},
		topologies:  map[string]*topology{},
	}
}

// SetNode adds or updates a node.
func (c *Cluster) SetNode(object *corev1.Node) Event {
	n := c.nodeNamed(object.Name)
	e := nodeEvent(n.Object, object, n)
	if n.Object == nil {
		n.index = len(c.nodes)
		c.nodes = append(c.nodes, n)
		c.reshape()
	} else if !maps.Equal(n.Object.Labels, object.Labels) ||
		!equality.Semantic.DeepEqual(n.Object.Spec.Taints, object.Spec.Taints) {
		c.reshape()
	}
	before := n.images
	n.Set(object)
	if !slices.Equal(before, n.images) {
		c.countImages(without(before, n.images), -1)
		c.countImages(without(n.images, before), 1)
	}
	c.note(n, nil, 0)
	return e
}

// RemoveNode removes a node. Pods that are still counted on it stay, because it may be added again.
func (c *Cluster) RemoveNode(name string) Event {
	n, ok := c.byName[name]
	if !ok || n.Object == nil {
		return Event{}
	}
	e := nodeEvent(n.Object, nil, n)
	c.countImages(n.images, -1)
	n.Object, n.images = nil, nil
	c.nodes = slices.DeleteFunc(c.nodes, func(o *Node) bool { return o == n })
	for i, o := range c.nodes {
		o.index = i
	}
	c.dropChanges(len(c.changes)) // their indexes are no longer valid
	c.reshape()
	c.dropIfEmpty(n)
	return e
}

// SetPod counts a pod on a node, instead of an older version of the same pod on any node.
func (c *Cluster) SetPod(p *Pod, node string) Event {
	uid := p.Object.UID
	before := c.pods[uid]
	var from *Node
	if before != nil {
		from = before.node
	}
	left := c.RemovePod(uid)
	n := c.nodeNamed(node)
	n.Add(p)
	p.node = n
	c.pods[uid] = p
	c.note(n, p, 1)
	c.noteReserved(uid)
	peers := c.byNamespace[p.Object.Namespace]
	p.namespaceIndex = len(peers)
	c.byNamespace[p.Object.Namespace] = append(peers, p)
	c.labelled.add(p)
	if len(p.antiAffinity) > 0 {
		c.antiAffine = append(c.antiAffine, p)
	}
	if len(p.attractions) > 0 || len(p.affinity) > 0 {
		c.attracting = append(c.attracting, p)
	}
	if from != nil && from != n { // moved: the freed resources of its former node matter most
		left.after = p
		return left
	}
	return podEvent(before, p, n)
}

// RemovePod removes a pod.
func (c *Cluster) RemovePod(uid types.UID) Event {
	p, ok := c.pods[uid]
	if !ok {
		return Event{}
	}
	delete(c.pods, uid)
	n := p.node
	n.Remove(uid)
	c.note(n, p, -1)
	c.noteReserved(uid)
	p.node = nil
	namespace := p.Object.Namespace
	peers := c.byNamespace[namespace]
	last := len(peers) - 1
	peers[p.namespaceIndex] = peers[last]
	peers[p.namespaceIndex].namespaceIndex = p.namespaceIndex
	peers[last] = nil
	if last == 0 {
		delete(c.byNamespace, namespace)
	} else {
		c.byNamespace[namespace] = peers[:last]
	}
	c.labelled.remove(p)
	same := func(o *Pod) bool { return o == p }
	if len(p.antiAffinity) > 0 {
		c.antiAffine = slices.DeleteFunc(c.antiAffine, same)
	}
	if len(p.attractions) > 0 || len(p.affinity) > 0 {
		c.attracting = slices.DeleteFunc(c.attracting, same)
	}
	if n.Object == nil {
		c.dropIfEmpty(n)
	}
	return podEvent(p, nil, n)
}

// Nominate reserves resources on a node for a pod whose victims are still terminating (L2.52). Pods
// of lower priority cannot use them.
func (c *Cluster) Nominate(p *Pod, node string) Event {
	e := c.RemoveNomination(p.Object.UID)
	c.nominated[node] = append(c.nominated[node], p)
	c.nominatedOn[p.Object.UID] = node
	if len(p.antiAffinity) > 0 {
		c.repelling++
	}
	c.noteReserved(p.Object.UID)
	if o := e.before; o != nil && e.reserved == node && o.Priority == p.Priority && slices.Equal(o.Ports, p.Ports) &&
		!shrank(o.Demand, p.Demand) && maps.Equal(o.Object.Labels, p.Object.Labels) {
		return Event{} // the same nomination again
	}
	return e
}

// RemoveNomination ends a reservation.
func (c *Cluster) RemoveNomination(uid types.UID) Event {
	node, ok := c.nominatedOn[uid]
	if !ok {
		return Event{}
	}
	c.noteReserved(uid)
	delete(c.nominatedOn, uid)
	pods := c.nominated[node]
	i := slices.IndexFunc(pods, func(p *Pod) bool { return p.Object.UID == uid })
	e := Event{filters: append(topologyFilters(), NodePorts, NodeResourcesFit), before: pods[i], node: c.byName[node],
		reserved: node}
	if len(pods[i].antiAffinity) > 0 {
		c.repelling--
	}
	if left := slices.Delete(pods, i, i+1); len(left) == 0 {
		delete(c.nominated, node)
	} else {
		c.nominated[node] = left
	}
	return e
}

// noteReserved logs a change of the node to which a pod is nominated.
func (c *Cluster) noteReserved(uid types.UID) {
	if node, ok := c.nominatedOn[uid]; ok {
		if n := c.byName[node]; n != nil {
			c.note(n, nil, 0)
		}
	}
}

// NominatedBelow returns the pods of lower priority than p that are nominated to the node; once p
// is on the node, they may no longer fit there (L2.52).
func (c *Cluster) NominatedBelow(p *Pod, node string) []*Pod {
	var below []*Pod
	for _, o := range c.nominated[node] {
		if o.Priority < p.Priority {
			below = append(below, o)
		}
	}
	return below
}

// SetNamespace sets the labels of a namespace, for selectors of namespaces.
func (c *Cluster) SetNamespace(name string, labels map[string]string) Event {
	if old, ok := c.namespaces[name]; ok && maps.Equal(old, labels) {
		return Event{}
	}
	c.namespaces[name] = labels
	c.shape++
	return Event{filters: []Filter{InterPodAffinity}, namespaceChanged: true}
}

// RemoveNamespace removes a namespace.
func (c *Cluster) RemoveNamespace(name string) Event {
	if _, ok := c.namespaces[name]; !ok {
		return Event{}
	}
	delete(c.namespaces, name)
	c.shape++
	return Event{filters: []Filter{InterPodAffinity}, namespaceChanged: true}
}

// Node returns a node by name; nil when unknown or when only its pods are known.
func (c *Cluster) Node(name string) *Node {
	if n := c.byName[name]; n != nil && n.Object != nil {
		return n
	}
	return nil
}

// Len is the number of nodes.
func (c *Cluster) Len() int { return len(c.nodes) }

// Pod returns the counted version of a pod; nil when it isn't counted.
func (c *Cluster) Pod(uid types.UID) *Pod { return c.pods[uid] }

// Uses reports whether another pod of p's namespace that has a node uses a claim.
func (c *Cluster) Uses(p *Pod, claim string) bool {
	return slices.ContainsFunc(c.byNamespace[p.Object.Namespace], func(o *Pod) bool {
		return o.Object.UID != p.Object.UID &&
			slices.ContainsFunc(o.Claims, func(c volume.PodClaim) bool { return c.Name == claim })
	})
}

// reservations are the pods whose reserved resources on n a new pod must leave free: those of
// the same or a higher priority.
func (c *Cluster) reservations(n *Node, p *Pod) []*Pod {
	return c.reservationsFor(n, p.Priority, p.Object.UID)
}

// reservationsFor are the reservations for a pod with this priority and UID.
func (c *Cluster) reservationsFor(n *Node, priority int32, uid types.UID) []*Pod {
	if len(c.nominated) == 0 {
		return nil
	}
	var ahead []*Pod
	for _, o := range c.nominated[n.Object.Name] {
		if o.Priority >= priority && o.Object.UID != uid && c.pods[o.Object.UID] == nil {
			ahead = append(ahead, o)
		}
	}
	return ahead
}

// nominatedAhead are the reservations for a pod with this priority and UID, by Node.index.
func (c *Cluster) nominatedAhead(priority int32, uid types.UID) map[int][]*Pod {
	var ahead map[int][]*Pod
	for name := range c.nominated { // any order: each node by itself
		n := c.Node(name)
		if n == nil {
			continue
		}
		if pods := c.reservationsFor(n, priority, uid); len(pods) > 0 {
			if ahead == nil {
				ahead = map[int][]*Pod{}
			}
			ahead[n.index] = pods
		}
	}
	return ahead
}

func (c *Cluster) nodeNamed(name string) *Node {
	n, ok := c.byName[name]
	if !ok {
		n = &Node{name: name, hash: hashOf(name)}
		c.byName[name] = n
	}
	return n
}

func (c *Cluster) dropIfEmpty(n *Node) {
	if len(n.pods) == 0 {
		delete(c.byName, n.name)
	}
}

func (c *Cluster) countImages(images []nodeImage, by int) {
	for _, image := range images {
		if c.images[image.name] += by; c.images[image.name] == 0 {
			delete(c.images, image.name)
		}
		for key, g := range c.groups { // any order: each by itself
			if slices.Contains(g.images, image.name) {
				delete(c.groups, key) // the share of nodes with the image affects the score of each node
			}
		}
	}
}
