package volume

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Plugin is the volume plugin of the scheduler that refuses a pod (S2.1).
type Plugin string

// The plugins in the order in which they run.
const (
	Restrictions Plugin = "VolumeRestrictions"
	Binding      Plugin = "VolumeBinding"
	Zone         Plugin = "VolumeZone"
)

// The reasons of nodes (S2.11 to S2.13, S2.54, S2.55).
const (
	reasonMissing = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
	reasonNode    = "node(s) didn't match PersistentVolume's node affinity"
	reasonNone    = "node(s) didn't find available persistent volumes to bind"
	reasonZone    = "node(s) had no available volume zone"
	ReasonInUse   = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use " +
		"by another pod"
)

// PodClaim is a claim that a pod uses.
type PodClaim struct {
	Name string
	Own  bool // made for this pod: a generic ephemeral volume
}

// PodClaims are the claims of a pod, each once; nil for none.
func PodClaims(pod *corev1.Pod) []PodClaim {
	var out []PodClaim
	var known map[PodClaim]bool // a pod may have tens of thousands of volumes
	for i := range pod.Spec.Volumes {
		name, own := ClaimOf(pod, &pod.Spec.Volumes[i])
		if one := (PodClaim{name, own}); name != "" && !known[one] {
			if known == nil {
				known = map[PodClaim]bool{}
			}
			known[one] = true
			out = append(out, one)
		}
	}
	return out
}

// Needs holds the requirements of a pod's volumes for its node.
type Needs struct {
	view    View
	drivers Drivers                         // nil: they are not checked
	inUse   []string                        // ReadWriteOncePod claims that another pod uses
	bound   []*corev1.PersistentVolumeClaim // completely
	delayed []*corev1.PersistentVolumeClaim // bound when the pod has its node, the smallest first
	zoned   []*corev1.PersistentVolume      // of claims that the pod names itself
}

// Refusal is the reason why a pod cannot run on a node, or on any: the plugin, and its reason.
type Refusal struct {
	By      Plugin
	Reasons []string
}

// NeedsOf returns the needs of the claims of a pod. A refusal applies to all nodes. used reports whether another
// pod with a node uses a claim of the pod's namespace.
func NeedsOf(pod *corev1.Pod, claims []PodClaim, view View, used func(claim string) bool) (*Needs, *Refusal) {
	n := &Needs{view: view}
	for _, pc := range claims {
		if view.Claim(pod.Namespace, pc.Name) == nil && !pc.Own {
			return nil, refusal(Restrictions, "persistentvolumeclaim %q not found", pc.Name)
		}
	}
	immediate := false
	for _, pc := range claims {
		c := view.Claim(pod.Namespace, pc.Name)
		if why := unusable(pod, pc, c); why != "" {
			return nil, refusal(Binding, "%s", why)
		}
		if slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod) && used(c.Name) {
			n.inUse = append(n.inUse, c.Name)
		}
		class, _ := ClassOf(c)
		switch {
		case FullyBound(c):
			n.bound = append(n.bound, c)
			if v := view.Volume(c.Spec.VolumeName); v != nil && !pc.Own {
				n.zoned = append(n.zoned, v)
			}
		case c.Spec.VolumeName == "" && class != "" && DelayedClass(view.Class(class)):
			n.delayed = append(n.delayed, c)
		default:
			immediate = true
		}
	}
	if immediate {
		return nil, refusal(Binding, "pod has unbound immediate PersistentVolumeClaims")
	}
	slices.SortStableFunc(n.delayed, func(a, b *corev1.PersistentVolumeClaim) int {
		size := a.Spec.Resources.Requests[corev1.ResourceStorage]
		return size.Cmp(b.Spec.Resources.Requests[corev1.ResourceStorage])
	})
	return n, nil
}

// InUse are the ReadWriteOncePod claims of the pod that another pod uses.
func (n *Needs) InUse() []string { return n.inUse }

// unusable returns why a pod can't use a claim at all (S2.3 to S2.6); "" if it can.
func unusable(pod *corev1.Pod, pc PodClaim, c *corev1.PersistentVolumeClaim) string {
	switch {
	case c == nil:
		return fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", pc.Name)
	case c.Status.Phase == corev1.ClaimLost:
		return fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", c.Name,
			c.Spec.VolumeName)
	case c.DeletionTimestamp != nil:
		return fmt.Sprintf("persistentvolumeclaim %q is being deleted", c.Name)
	case pc.Own && !metav1.IsControlledBy(c, pod):
		return fmt.Sprintf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", c.Namespace, c.Name,
			pod.Namespace, pod.Name)
	}
	return ""
}

func refusal(by Plugin, format string, args ...any) *Refusal {
	return &Refusal{by, []string{fmt.Sprintf(format, args...)}}
}

// Bind is a volume that a claim is to get.
type Bind struct {
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
}

// Plan holds the writes before a pod is bound to a node (S2.21), and the claims that must be bound then.
type Plan struct {
	Volumes []*corev1.PersistentVolume      // with their claimRefs set
	Claims  []*corev1.PersistentVolumeClaim // with the node that was selected
	Waits   []Bind                          // Volume is nil where one is provisioned
}

// Nothing reports whether the pod can be bound at once.
func (p *Plan) Nothing() bool { return p == nil || len(p.Waits) == 0 }

// On returns the plan for a node, or why the pod cannot run there.
func (n *Needs) On(node *corev1.Node) (*Plan, *Refusal) {
	if len(n.inUse) > 0 {
		return nil, &Refusal{Restrictions, []string{ReasonInUse}}
	}
	if no := n.limits(node); no != nil {
		return nil, no
	}
	var reasons []string
	missing, elsewhere := false, false
	for _, c := range n.bound {
		v := n.view.Volume(c.Spec.VolumeName)
		missing = missing || v == nil
		elsewhere = elsewhere || v != nil && !Reaches(v, node)
	}
	if elsewhere {
		reasons = append(reasons, reasonNode)
	}
	plan, why := n.place(node)
	if why != "" {
		reasons = append(reasons, why)
	}
	if missing {
		reasons = append(reasons, reasonMissing)
	}
	if len(reasons) > 0 {
		return nil, &Refusal{Binding, reasons}
	}
	for _, v := range n.zoned {
		if !inZone(v, node) {
			return nil, &Refusal{Zone, []string{reasonZone}}
		}
	}
	return plan, nil
}

// place finds volumes for the claims with delayed binding, or plans their provisioning on the node (S2.12, S2.13), or
// returns why it cannot.
func (n *Needs) place(node *corev1.Node) (*Plan, string) {
	plan, taken := &Plan{}, map[string]bool{}
	for _, c := range n.delayed {
		if at, ok := c.Annotations[SelectedNode]; ok {
			if at != node.Name {
				return nil, reasonNone
			}
			plan.Waits = append(plan.Waits, Bind{Claim: c}) // an earlier attempt selected it (S2.24)
			continue
		}
		class, _ := ClassOf(c)
		if v := findOn(n.view.Volumes(), c, node, taken); v != nil {
			taken[v.Name] = true
			plan.Waits = append(plan.Waits, Bind{v, c})
			if claimed, changed := claimedBy(v, c); changed {
				plan.Volumes = append(plan.Volumes, claimed)
			}
			continue
		}
		k := n.view.Class(class)
		switch {
		case k == nil || !Provisions(k) || !allows(k, node):
			return nil, reasonNone
		case !n.room(k, c, node):
			return nil, reasonSpace
		}
		selected := c.DeepCopy()
		annotate(&selected.Annotations, SelectedNode, node.Name)
		plan.Claims = append(plan.Claims, selected)
		plan.Waits = append(plan.Waits, Bind{Claim: c})
	}
	return plan, ""
}

// allows reports whether the topology of a class allows a node.
func allows(c *storagev1.StorageClass, node *corev1.Node) bool {
	if len(c.AllowedTopologies) == 0 {
		return true
	}
	return slices.ContainsFunc(c.AllowedTopologies, func(t corev1.TopologySelectorTerm) bool {
		for _, e := range t.MatchLabelExpressions {
			value, ok := node.Labels[e.Key]
			if !ok || !slices.Contains(e.Values, value) {
				return false
			}
		}
		return len(t.MatchLabelExpressions) > 0
	})
}

// inZone reports whether a node is in a zone and region of a volume (S2.54).
func inZone(v *corev1.PersistentVolume, node *corev1.Node) bool {
	keys := []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
		corev1.LabelFailureDomainBetaRegion}
	if !slices.ContainsFunc(keys, func(k string) bool { return has(node.Labels, k) }) {
		return true
	}
	for _, k := range keys {
		if want, ok := v.Labels[k]; ok && !slices.Contains(strings.Split(want, "__"), node.Labels[k]) {
			return false
		}
	}
	return true
}

// Bound reports whether all claims of a plan are bound, so that the pod can be bound to the node. An error ends
// the wait (S2.23).
func (p *Plan) Bound(view View, node *corev1.Node) (bool, error) {
	done := true
	for _, w := range p.Waits {
		c := view.Claim(w.Claim.Namespace, w.Claim.Name)
		if c == nil || c.UID != w.Claim.UID {
			return false, fmt.Errorf("persistentvolumeclaim %q not found", w.Claim.Name)
		}
		if FullyBound(c) {
			v := view.Volume(c.Spec.VolumeName)
			if v == nil {
				done = false // its watch event will follow
			} else if !Reaches(v, node) {
				return false, fmt.Errorf("pv %q node affinity doesn't match node %q: no matching NodeSelectorTerms", v.Name,
					node.Name)
			}
			continue
		}
		done = false
		if w.Volume != nil {
			if v := view.Volume(w.Volume.Name); v != nil && (v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID == "") {
				return false, fmt.Errorf("ClaimRef got reset for pv %q", v.Name)
			}
			continue
		}
		switch at, ok := c.Annotations[SelectedNode]; {
		case len(c.Annotations) == 0:
			return false, fmt.Errorf("selectedNode annotation reset for PVC %q", c.Name)
		case !ok || at != node.Name:
			return false, fmt.Errorf("provisioning failed for PVC %q", c.Name)
		}
	}
	return done, nil
}
