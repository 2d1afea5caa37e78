package statefulset

import (
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func podKind() schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind("Pod") }

// Claims lists the changes to the PersistentVolumeClaims of one pod.
type Claims struct {
	Create []*corev1.PersistentVolumeClaim // missing claims
	// Terminating are the names of claims that are being deleted (W3.48).
	Terminating []string
	// Own are the names of claims whose owner references differ from the retention policy (W3.91–W3.94); the function
	// Own corrects them.
	Own []string
	// Conflicting are the names of claims with another controller (W3.85).
	Conflicting []string
}

// Nothing reports whether there are no changes.
func (c *Claims) Nothing() bool {
	return len(c.Create) == 0 && len(c.Terminating) == 0 && len(c.Own) == 0 && len(c.Conflicting) == 0
}

func claimName(set *appsv1.StatefulSet, t *corev1.PersistentVolumeClaim, ordinal int) string {
	return t.Name + "-" + set.Name + "-" + strconv.Itoa(ordinal)
}

// newClaim returns the claim for an ordinal. Its labels come from the claim template and from the set's selector, not
// from the pod template (W3.8, W12.32).
func newClaim(set *appsv1.StatefulSet, t *corev1.PersistentVolumeClaim, ordinal int) *corev1.PersistentVolumeClaim {
	claim := t.DeepCopy()
	claim.Name, claim.Namespace = claimName(set, t, ordinal), set.Namespace
	if claim.Labels == nil {
		claim.Labels = map[string]string{}
	}
	if set.Spec.Selector != nil {
		maps.Copy(claim.Labels, set.Spec.Selector.MatchLabels)
	}
	return claim
}

// missing adds the claims of a pod that do not exist or are being deleted.
func (in *Input) missing(c *Claims, ordinal int) {
	for i := range in.Set.Spec.VolumeClaimTemplates {
		claim := newClaim(in.Set, &in.Set.Spec.VolumeClaimTemplates[i], ordinal)
		switch there := in.Claim(claim.Name); {
		case there == nil:
			c.Create = append(c.Create, claim)
		case there.DeletionTimestamp != nil:
			c.Terminating = append(c.Terminating, claim.Name)
		}
	}
}

// owners adds the claims of a pod whose owner references differ from the policy.
func (in *Input) owners(c *Claims, pod *corev1.Pod, ordinal int) {
	for i := range in.Set.Spec.VolumeClaimTemplates {
		claim := in.Claim(claimName(in.Set, &in.Set.Spec.VolumeClaimTemplates[i], ordinal))
		if claim == nil {
			continue
		}
		if conflicting(claim, in.Set, pod) {
			c.Conflicting = append(c.Conflicting, claim.Name)
		}
		if !owned(claim, in.Set, pod) {
			c.Own = append(c.Own, claim.Name)
		}
	}
}

// stale reports whether a claim of the pod is still owned by an earlier pod with the same name; the new pod waits until
// it is deleted (W3.42, W3.96).
func (in *Input) stale(pod *corev1.Pod, ordinal int) bool {
	if policy(in.Set).WhenScaled == appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		return false
	}
	for i := range in.Set.Spec.VolumeClaimTemplates {
		claim := in.Claim(claimName(in.Set, &in.Set.Spec.VolumeClaimTemplates[i], ordinal))
		if claim != nil && staleRef(claim, pod, podKind()) {
			return true
		}
	}
	return false
}

func policy(set *appsv1.StatefulSet) appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy {
	p := appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{}
	if set.Spec.PersistentVolumeClaimRetentionPolicy != nil {
		p = *set.Spec.PersistentVolumeClaimRetentionPolicy
	}
	for _, when := range []*appsv1.PersistentVolumeClaimRetentionPolicyType{&p.WhenDeleted, &p.WhenScaled} {
		if *when != appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
			*when = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
		}
	}
	return p
}

// names reports whether a reference has the name and kind of an object, regardless of the UID.
func names(ref metav1.OwnerReference, o metav1.Object, k schema.GroupVersionKind) bool {
	return ref.APIVersion == k.GroupVersion().String() && ref.Kind == k.Kind && ref.Name == o.GetName()
}

func staleRef(claim *corev1.PersistentVolumeClaim, o metav1.Object, k schema.GroupVersionKind) bool {
	i := slices.IndexFunc(claim.OwnerReferences, func(r metav1.OwnerReference) bool { return names(r, o, k) })
	return i >= 0 && claim.OwnerReferences[i].UID != o.GetUID()
}

// conflicting reports whether the claim has another controller, so that the policy does not apply (W3.85, W3.95).
func conflicting(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	if p := policy(set); p.WhenDeleted == p.WhenScaled &&
		p.WhenScaled == appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		return false
	}
	return slices.ContainsFunc(claim.OwnerReferences, func(ref metav1.OwnerReference) bool {
		switch {
		case names(ref, set, Kind()):
			return ref.UID != set.UID
		case names(ref, pod, podKind()):
			return ref.UID != pod.UID
		default:
			return ref.Controller != nil && *ref.Controller
		}
	})
}

// wanted returns whether the set and the pod own the claim according to the policy (W3.91–W3.94).
func wanted(set *appsv1.StatefulSet, pod *corev1.Pod) (bySet, byPod bool) {
	p := policy(set)
	ordinal, _ := Ordinal(set.Name, pod.Name)
	condemned := !inRange(set, ordinal)
	deleted := p.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	scaled := p.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	return deleted && !(scaled && condemned), scaled && condemned
}

// owned reports whether the owner references of a claim match the policy or must not be changed.
func owned(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	if staleRef(claim, set, Kind()) || staleRef(claim, pod, podKind()) {
		return true // owned by an earlier set or pod: left to the garbage collector
	}
	var bySet, byPod bool
	for _, ref := range claim.OwnerReferences {
		bySet, byPod = bySet || ref.UID == set.UID, byPod || ref.UID == pod.UID
	}
	if conflicting(claim, set, pod) {
		return !bySet && !byPod
	}
	for _, ref := range claim.OwnerReferences {
		if (ref.UID == set.UID || ref.UID == pod.UID) && (ref.Controller == nil || !*ref.Controller) {
			return false
		}
	}
	wantSet, wantPod := wanted(set, pod)
	return bySet == wantSet && byPod == wantPod
}

// Own returns the claim with owner references according to the policy, and whether they changed. pod is the pod that
// mounts the claim.
func Own(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, pod *corev1.Pod) (*corev1.PersistentVolumeClaim,
	bool) {
	if owned(claim, set, pod) {
		return claim, false
	}
	others := slices.DeleteFunc(slices.Clone(claim.OwnerReferences), func(ref metav1.OwnerReference) bool {
		return names(ref, set, Kind()) || names(ref, pod, podKind())
	})
	if !conflicting(claim, set, pod) {
		bySet, byPod := wanted(set, pod)
		if byPod {
			others = append(others, *metav1.NewControllerRef(pod, podKind()))
		}
		if bySet {
			others = append(others, *metav1.NewControllerRef(set, Kind()))
		}
	}
	claim = claim.DeepCopy()
	claim.OwnerReferences = others
	return claim, true
}
