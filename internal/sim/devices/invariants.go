package devices

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/podclaims"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	Once   fakeapi.Invariant = "for an entry of a pod one claim is made (S9.10, S9.13)"
	Own    fakeapi.Invariant = "a claim of a template is reserved for its pod only (S9.15, S9.27)"
	Single fakeapi.Invariant = "a device is allocated to one claim (S9.23, S9.26)"
	Used   fakeapi.Invariant = "containers of two pods never use a device at once (S9.15, S9.51)"
)

// Stored checks a claim that was stored.
func Stored(api *fakeapi.API, after fakeapi.Entry) {
	c, ok := after.Object.(*resourcev1.ResourceClaim)
	if !ok || after.Gone {
		return
	}
	_, owner := podclaims.Owner(c)
	for _, r := range c.Status.ReservedFor {
		if string(r.UID) != owner {
			fakeapi.Break(Own, "claim %s of pod %s is reserved for %s", c.Name, owner, r.Name)
		}
	}
	for _, other := range fakeapi.All[*resourcev1.ResourceClaim](api) {
		if other.UID == c.UID {
			continue
		}
		_, of := podclaims.Owner(other)
		sameEntry := c.Annotations[resourcev1.PodResourceClaimAnnotation] ==
			other.Annotations[resourcev1.PodResourceClaimAnnotation]
		if of == owner && sameEntry && c.DeletionTimestamp == nil && other.DeletionTimestamp == nil {
			fakeapi.Break(Once, "claims %s and %s are for the same pod", other.Name, c.Name)
		}
		for _, d := range Of(c) {
			for _, same := range Of(other) {
				if d == same {
					fakeapi.Break(Single, "%s is allocated to %s and %s", d, other.Name, c.Name)
				}
			}
		}
	}
}

// Of returns the devices of a claim.
func Of(c *resourcev1.ResourceClaim) []string {
	var out []string
	if a := c.Status.Allocation; a != nil {
		for _, r := range a.Devices.Results {
			out = append(out, r.Pool+"/"+r.Device)
		}
	}
	return out
}

// Node holds which devices the pods of all nodes got when they were prepared.
type Node struct {
	api      *fakeapi.API
	prepared map[types.UID][]string
}

// NewNode returns nodes without pods.
func NewNode(api *fakeapi.API) *Node { return &Node{api: api, prepared: map[types.UID][]string{}} }

// Prepare does what the agent of a node does before the containers of a pod start (S9.51). The error is what the pod
// waits for.
func (n *Node) Prepare(p *corev1.Pod, node string) error {
	stored, ok := n.api.Get(p.UID).(*corev1.Pod)
	if !ok || len(p.Spec.ResourceClaims) == 0 {
		return nil
	}
	names := podclaims.Names(stored)
	if len(names) < len(p.Spec.ResourceClaims) {
		return fmt.Errorf("a claim of pod %s does not exist", p.Name)
	}
	var all []string
	for _, c := range fakeapi.All[*resourcev1.ResourceClaim](n.api) {
		if c.Name != names[0] || c.Namespace != p.Namespace {
			continue
		}
		for _, r := range c.Status.ReservedFor {
			if r.UID == p.UID && podclaims.OwnedBy(p, c) {
				all = Of(c)
			}
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("the claim of pod %s is not reserved for it", p.Name)
	}
	for _, d := range all {
		if len(d) <= len(node) || d[:len(node)+1] != node+"/" {
			return fmt.Errorf("%s is not on node %s", d, node)
		}
	}
	n.prepared[p.UID] = all
	return nil
}

// Started checks the pods that have a running container.
func (n *Node) Started(running map[types.UID]bool) {
	users := map[string]types.UID{}
	for uid, list := range n.prepared {
		if !running[uid] {
			continue
		}
		for _, d := range list {
			if other, twice := users[d]; twice {
				fakeapi.Break(Used, "pods %s and %s run with %s", min(other, uid), max(other, uid), d)
			}
			users[d] = uid
		}
	}
}
