// Package podclaims decides which claims belong to pods: the ResourceClaims that are made from
// templates, the reservations of ResourceClaims, and the PersistentVolumeClaims of generic
// ephemeral volumes. The controllers resourceclaim and ephemeral drive it. It is a function of its
// arguments.
//
// Contract: S6 and S9.B in docs/spec/storage-and-node.md.
package podclaims

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Named names the claim of an entry of pod.spec.resourceClaims.
type Named struct {
	Claim string // the claim's name; empty if none is needed, or if it is not known yet
	Known bool   // from the pod's status or spec
	Made  bool   // the claim is made from a template, for this pod only
}

// Name returns the claim of an entry.
func Name(pod *corev1.Pod, entry *corev1.PodResourceClaim) Named {
	if entry.ResourceClaimName != nil {
		return Named{Claim: *entry.ResourceClaimName, Known: true}
	}
	for i := range pod.Status.ResourceClaimStatuses {
		if s := &pod.Status.ResourceClaimStatuses[i]; s.Name == entry.Name {
			n := Named{Known: true, Made: true}
			if s.ResourceClaimName != nil {
				n.Claim = *s.ResourceClaimName
			}
			return n
		}
	}
	return Named{Made: true}
}

// Names returns the claims that a pod is known to use, also the one that the scheduler made for
// extended resources.
func Names(pod *corev1.Pod) []string {
	var list []string
	for i := range pod.Spec.ResourceClaims {
		if n := Name(pod, &pod.Spec.ResourceClaims[i]); n.Claim != "" {
			list = append(list, n.Claim)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName != "" {
		list = append(list, s.ResourceClaimName)
	}
	return list
}

// Done reports whether a pod will never run again and therefore uses no claim (S9.15).
func Done(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed ||
		pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

// OwnedBy reports whether a claim was made for this pod.
func OwnedBy(pod *corev1.Pod, claim metav1.Object) bool {
	return claim.GetNamespace() == pod.Namespace && metav1.IsControlledBy(claim, pod)
}

// Input holds everything that a pod's ResourceClaims depend on; read only.
type Input struct {
	Pod       *corev1.Pod
	Claims    map[string]*resourcev1.ResourceClaim         // by name, those that are named by the pod or owned by it
	Templates map[string]*resourcev1.ResourceClaimTemplate // by name
}

// New is a claim to be made for an entry of the pod.
type New struct {
	Entry string
	Claim *resourcev1.ResourceClaim
}

// Plan holds the actions for a pod.
type Plan struct {
	Create []New
	// Found are claims, by entry, that were made for this pod before, but that its status does not name.
	Found map[string]string
	// Reserve are allocated claims that a pod with a node has not reserved (S9.14).
	Reserve []*resourcev1.ResourceClaim
	// Failed is the entry that cannot be served, and Err the reason.
	Failed string
	Err    error
}

// ForPod returns the plan of a pod.
func ForPod(in Input) Plan {
	var p Plan
	if in.Pod.DeletionTimestamp != nil || Done(in.Pod) {
		return p
	}
	for i := range in.Pod.Spec.ResourceClaims {
		entry := &in.Pod.Spec.ResourceClaims[i]
		n := Name(in.Pod, entry)
		claim := in.Claims[n.Claim]
		switch {
		case n.Known && n.Claim == "":
		case claim != nil && (!n.Made || OwnedBy(in.Pod, claim)):
			if in.Pod.Spec.NodeName != "" && claim.Status.Allocation != nil && !reserved(claim, in.Pod) &&
				len(claim.Status.ReservedFor) < resourcev1.ResourceClaimReservedForMaxSize {
				p.Reserve = append(p.Reserve, claim)
			}
		case entry.ResourceClaimTemplateName == nil:
			// The user creates it.
		default:
			p.make(in, entry)
		}
	}
	return p
}

// make finds or creates the claim of an entry (S9.10, S9.13).
func (p *Plan) make(in Input, entry *corev1.PodResourceClaim) {
	for _, name := range slices.Sorted(maps.Keys(in.Claims)) {
		c := in.Claims[name]
		if OwnedBy(in.Pod, c) && c.Annotations[resourcev1.PodResourceClaimAnnotation] == entry.Name {
			if p.Found == nil {
				p.Found = map[string]string{}
			}
			p.Found[entry.Name] = name
			return
		}
	}
	t := in.Templates[*entry.ResourceClaimTemplateName]
	if t == nil {
		if p.Err == nil {
			p.Failed, p.Err = entry.Name, fmt.Errorf("resource claim template %q: resourceclaimtemplate.resource.k8s.io "+
				"%q not found", *entry.ResourceClaimTemplateName, *entry.ResourceClaimTemplateName)
		}
		return
	}
	annotations := maps.Clone(t.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourcev1.PodResourceClaimAnnotation] = entry.Name
	p.Create = append(p.Create, New{entry.Name, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: in.Pod.Namespace, GenerateName: baseName(in.Pod.Name, entry.Name),
			Labels: maps.Clone(t.Spec.Labels), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: in.Pod.Name, UID: in.Pod.UID,
				Controller: new(true)}},
		},
		Spec: *t.Spec.Spec.DeepCopy(),
	}})
}

// maxBase leaves room for a hyphen and five random characters in a name of 63.
const maxBase = 57

// baseName shortens both parts in proportion, so that both stay recognizable.
func baseName(pod, entry string) string {
	base := pod + "-" + entry + "-"
	if len(base) <= maxBase {
		return base
	}
	return pod[:len(pod)*maxBase/len(base)] + "-" + entry[:len(entry)*maxBase/len(base)]
}

func reserved(claim *resourcev1.ResourceClaim, pod *corev1.Pod) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return r.UID == pod.UID
	})
}

// Reservation is the reference with which a pod reserves a claim.
func Reservation(pod *corev1.Pod) resourcev1.ResourceClaimConsumerReference {
	return resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID}
}

// Statuses returns pod.status.resourceClaimStatuses with the claims of some entries, sorted by entry
// (S9.11). Entries that need no claim do not change.
func Statuses(pod *corev1.Pod, names map[string]string) []corev1.PodResourceClaimStatus {
	all := map[string]*string{}
	for _, s := range pod.Status.ResourceClaimStatuses {
		all[s.Name] = s.ResourceClaimName
	}
	for entry, name := range names { // any order: a map becomes a map
		all[entry] = new(name)
	}
	var list []corev1.PodResourceClaimStatus
	for _, entry := range slices.Sorted(maps.Keys(all)) {
		list = append(list, corev1.PodResourceClaimStatus{Name: entry, ResourceClaimName: all[entry]})
	}
	return list
}

// IsPod reports whether a claim is reserved for a pod, not for another kind of object.
func IsPod(r resourcev1.ResourceClaimConsumerReference) bool {
	return r.APIGroup == "" && r.Resource == "pods"
}

// Release holds the actions for a claim, in this order.
type Release struct {
	Status    *resourcev1.ResourceClaimStatus // to be stored; nil if it stays
	Finalizer bool                            // then the finalizer must be removed
	Delete    bool                            // then the claim must be deleted
}

// ForClaim decides about the reservations, the allocation and the deletion of a claim (S9.15,
// S9.16). gone has the UIDs of the pods that have reserved it and will not run any more; owner is
// the pod with the name of its owner, nil if there is none.
func ForClaim(claim *resourcev1.ResourceClaim, gone map[string]bool, owner *corev1.Pod) Release {
	var r Release
	left := slices.DeleteFunc(slices.Clone(claim.Status.ReservedFor),
		func(ref resourcev1.ResourceClaimConsumerReference) bool { return IsPod(ref) && gone[string(ref.UID)] })
	finalizer := slices.Contains(claim.Finalizers, resourcev1.Finalizer)
	fewer := len(left) < len(claim.Status.ReservedFor)
	// An unused claim stays allocated until its last user ends or it is deleted.
	free := len(left) == 0 && finalizer && (fewer || claim.DeletionTimestamp != nil)
	if fewer || free && claim.Status.Allocation != nil {
		r.Status = claim.Status.DeepCopy()
		r.Status.ReservedFor = left
		if free {
			r.Status.Allocation = nil
		}
	}
	// Only then: the scheduler adds the finalizer before it stores an allocation.
	r.Finalizer = free
	r.Delete = len(left) == 0 && claim.DeletionTimestamp == nil && owned(claim, owner)
	return r
}

// owned reports whether a claim was made for a pod that will not use it any more.
func owned(claim *resourcev1.ResourceClaim, owner *corev1.Pod) bool {
	_, uid := Owner(claim)
	return uid != "" && owner != nil && (string(owner.UID) != uid || Done(owner))
}

// Owner returns the pod that a claim was made for; empty if it was not.
func Owner(claim metav1.Object) (name, uid string) {
	if ref := metav1.GetControllerOfNoCopy(claim); ref != nil && ref.APIVersion == "v1" && ref.Kind == "Pod" {
		return ref.Name, string(ref.UID)
	}
	return "", ""
}

// VolumeClaimName is the name of the claim of a generic ephemeral volume (S6.1).
func VolumeClaimName(pod *corev1.Pod, volume *corev1.Volume) string {
	return pod.Name + "-" + volume.Name
}

// UsesVolumeClaim reports whether a volume of the pod is the claim. A claim with the name of a generic ephemeral volume
// that belongs to another owner is not.
func UsesVolumeClaim(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return claim.Namespace == pod.Namespace && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName == claim.Name
		}
		return v.Ephemeral != nil && VolumeClaimName(pod, &v) == claim.Name && OwnedBy(pod, claim)
	})
}

// ForVolume returns the claim to be made for a generic ephemeral volume; nil if there is nothing to
// do. existing is the claim with its name, nil if there is none (S6.1 to S6.3).
func ForVolume(pod *corev1.Pod, volume *corev1.Volume, existing *corev1.PersistentVolumeClaim) (
	*corev1.PersistentVolumeClaim, error) {
	if volume.Ephemeral == nil || volume.Ephemeral.VolumeClaimTemplate == nil || pod.DeletionTimestamp != nil {
		return nil, nil
	}
	if existing != nil {
		if !OwnedBy(pod, existing) {
			return nil, fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", existing.Namespace,
				existing.Name, pod.Namespace, pod.Name)
		}
		return nil, nil
	}
	t := volume.Ephemeral.VolumeClaimTemplate
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: VolumeClaimName(pod, volume),
			Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
				Controller: new(true), BlockOwnerDeletion: new(true)}},
		},
		Spec: *t.Spec.DeepCopy(),
	}, nil
}
