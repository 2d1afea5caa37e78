package devicetaints

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster provides the objects that the status of a rule depends on; they are read only.
type Cluster struct {
	Claims []*resourcev1.ResourceClaim
	Claim  func(namespace, name string) *resourcev1.ResourceClaim // nil if there is none
	Pod    func(namespace, name string) *corev1.Pod               // nil if there is none
}

// Status returns the condition of a rule (S9.63), without a time. evicted is how many pods were evicted because of
// the rule since the process started.
func (x *Index) Status(r *resourcev1.DeviceTaintRule, evicted int, c Cluster) metav1.Condition {
	out := metav1.Condition{Type: resourcev1.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse,
		ObservedGeneration: r.Generation}
	switch r.Spec.Taint.Effect {
	case resourcev1.DeviceTaintEffectNoExecute:
		pods, namespaces := pending(r, c)
		switch {
		case pods > 0:
			out.Reason, out.Status = "PodsPendingEviction", metav1.ConditionTrue
			out.Message = count(pods, "pod needs", "pods need") + " to be evicted in " +
				count(namespaces, "namespace", "different namespaces") + "."
		case evicted > 0:
			out.Reason = "Completed"
		default:
			out.Reason = "NotStarted"
		}
	case resourcev1.DeviceTaintEffectNone:
		pods, namespaces := pending(r, c)
		out.Reason = "NoEffect"
		out.Message = count(x.published(r), "published device", "published devices") + " selected. " +
			count(allocated(r, c.Claims), "allocated device", "allocated devices") + " selected. " +
			count(pods, "pod", "pods") + " would be evicted in " +
			count(namespaces, "namespace", "different namespaces") + " if the effect was NoExecute. This information " +
			"will not be updated again. Recreate the DeviceTaintRule to trigger an update."
	default:
		out.Reason, out.Message = "OtherEffect", "Eviction only happens for the NoExecute effect."
	}
	if evicted > 0 {
		if out.Message != "" {
			out.Message += " "
		}
		out.Message += count(evicted, "pod", "pods") + " evicted since starting the controller."
	}
	return out
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// pending counts the pods that a rule evicts, or would evict if its effect was NoExecute, and their namespaces.
// Pods that are being deleted do not count.
func pending(r *resourcev1.DeviceTaintRule, c Cluster) (pods, namespaces int) {
	alone, evicting := NewIndex(), *r
	evicting.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNoExecute
	alone.SetRule(&evicting)
	type name struct{ namespace, name string }
	seen, in := map[name]bool{}, map[string]bool{}
	for _, claim := range c.Claims {
		if alone.ForClaim(claim) == nil {
			continue
		}
		for _, user := range claim.Status.ReservedFor {
			n := name{claim.Namespace, user.Name}
			if user.APIGroup != "" || user.Resource != "pods" || seen[n] {
				continue
			}
			seen[n] = true
			pod := c.Pod(n.namespace, n.name)
			if pod == nil || pod.DeletionTimestamp != nil {
				continue
			}
			get := func(claim string) *resourcev1.ResourceClaim { return c.Claim(n.namespace, claim) }
			if alone.ForPod(pod, get) != nil {
				pods++
				in[n.namespace] = true
			}
		}
	}
	return pods, len(in)
}

// published counts the devices of the newest generations that a rule selects.
func (x *Index) published(r *resourcev1.DeviceTaintRule) int {
	n := 0
	for id, p := range x.pools { // any order: a number
		for _, s := range p.slices { // any order: a number
			if s.slice.Spec.Pool.Generation != p.generation {
				continue
			}
			for i := range s.slice.Spec.Devices {
				if Selects(r, Device{id.driver, id.name, s.slice.Spec.Devices[i].Name}) {
					n++
				}
			}
		}
	}
	return n
}

// allocated counts the devices of claims that a rule selects.
func allocated(r *resourcev1.DeviceTaintRule, claims []*resourcev1.ResourceClaim) int {
	n := 0
	for _, c := range claims {
		if c.Status.Allocation == nil {
			continue
		}
		for i := range c.Status.Allocation.Devices.Results {
			d := &c.Status.Allocation.Devices.Results[i]
			if Selects(r, Device{d.Driver, d.Pool, d.Device}) {
				n++
			}
		}
	}
	return n
}
