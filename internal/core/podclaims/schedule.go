package podclaims

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Wanted returns the claims of a pod's entries, in their order, or why the pod has to wait (S9.20). get returns the
// claim of a name in the pod's namespace, nil if there is none.
func Wanted(pod *corev1.Pod, get func(name string) *resourcev1.ResourceClaim) ([]*resourcev1.ResourceClaim, string) {
	var claims []*resourcev1.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		n := Name(pod, &pod.Spec.ResourceClaims[i])
		if !n.Known {
			return nil, fmt.Sprintf("pod \"%s/%s\": ResourceClaim not created yet", pod.Namespace, pod.Name)
		}
		if n.Claim == "" {
			continue
		}
		claim := get(n.Claim)
		switch {
		case claim == nil:
			return nil, fmt.Sprintf("resourceclaim.resource.k8s.io %q not found", n.Claim)
		case claim.DeletionTimestamp != nil:
			return nil, fmt.Sprintf("resourceclaim %q is being deleted", n.Claim)
		case n.Made && !OwnedBy(pod, claim):
			return nil, NotOwned(pod, claim)
		}
		claims = append(claims, claim)
	}
	return claims, ""
}

// NotOwned means that a claim was created for another pod of the same name.
func NotOwned(pod *corev1.Pod, claim metav1.Object) string {
	return fmt.Sprintf("ResourceClaim %s/%s was not created for Pod %s/%s (Pod is not owner)", claim.GetNamespace(),
		claim.GetName(), pod.Namespace, pod.Name)
}

// Full reports whether a claim that is allocated can take no further pod (S9.21).
func Full(claim *resourcev1.ResourceClaim, pod *corev1.Pod) bool {
	return claim.Status.Allocation != nil && !reserved(claim, pod) &&
		len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize
}

// IsReserved reports whether a pod has reserved a claim.
func IsReserved(claim *resourcev1.ResourceClaim, pod *corev1.Pod) bool { return reserved(claim, pod) }

// The reasons why a claim can't be allocated to a pod any more.
var (
	ErrDeleted     = errors.New("got deleted in the meantime")
	ErrAllocated   = errors.New("got allocated elsewhere in the meantime")
	ErrDeallocated = errors.New("got deallocated elsewhere in the meantime")
)

// Allocation holds the writes that give a claim its devices and reserve it for a pod, in this order (S9.27).
type Allocation struct {
	Finalizer bool                            // then the finalizer must be added
	Status    *resourcev1.ResourceClaimStatus // to be stored
}

// Allocate returns the writes for a claim. result has the devices that were found; nil if the claim must have an
// allocation. An error means that the claim has changed since they were found.
func Allocate(claim *resourcev1.ResourceClaim, pod *corev1.Pod, result *resourcev1.AllocationResult, now time.Time) (
	Allocation, error) {
	var a Allocation
	s := claim.Status.DeepCopy()
	switch {
	case claim.DeletionTimestamp != nil:
		return a, ErrDeleted
	case result != nil && s.Allocation != nil:
		return a, ErrAllocated
	case result == nil && s.Allocation == nil:
		return a, ErrDeallocated
	case result != nil:
		a.Finalizer = !slices.Contains(claim.Finalizers, resourcev1.Finalizer)
		s.Allocation = result.DeepCopy()
	}
	if s.Allocation.AllocationTimestamp == nil {
		s.Allocation.AllocationTimestamp = new(metav1.NewTime(now))
	}
	if !reserved(claim, pod) {
		s.ReservedFor = append(s.ReservedFor, Reservation(pod))
	}
	a.Status = s
	return a, nil
}

// UnknownClass names a request of a claim whose class does not exist; empty if there is none (S9.21).
func UnknownClass(claim *resourcev1.ResourceClaim, known func(class string) bool) string {
	missing := func(request, class string) string {
		if known(class) {
			return ""
		}
		return fmt.Sprintf("request %s: device class %s does not exist", request, class)
	}
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Exactly == nil && len(r.FirstAvailable) == 0 {
			return fmt.Sprintf("resource claim %s/%s, request %s: unknown request type", claim.Namespace, claim.Name,
				r.Name)
		}
		if r.Exactly != nil {
			if why := missing(r.Name, r.Exactly.DeviceClassName); why != "" {
				return why
			}
		}
		for j := range r.FirstAvailable {
			if why := missing(r.Name+"/"+r.FirstAvailable[j].Name, r.FirstAvailable[j].DeviceClassName); why != "" {
				return why
			}
		}
	}
	return ""
}

// Preference rates the firstAvailable alternatives of an allocation: higher for earlier ones
// (S9.25).
func Preference(claim *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) int64 {
	var score int64
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		for j := range r.FirstAvailable {
			chosen := r.Name + "/" + r.FirstAvailable[j].Name
			if slices.ContainsFunc(a.Devices.Results,
				func(d resourcev1.DeviceRequestAllocationResult) bool { return d.Request == chosen }) {
				score += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - j)
			}
		}
	}
	return score
}

// ErrBinding means that a driver could not prepare a device for binding.
var ErrBinding = errors.New("device binding failed")

// ErrBindingTimeout means that a device was not ready in time.
var ErrBindingTimeout = errors.New("device binding timeout")

// Ready reports whether the drivers of a claim's devices have set the binding conditions (S9.28). An error means
// that they failed or timed out: limit is the time since the allocation.
func Ready(claim *resourcev1.ResourceClaim, now time.Time, limit time.Duration) (bool, error) {
	a := claim.Status.Allocation
	if a == nil {
		return false, nil
	}
	waits := false
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		var conditions []metav1.Condition
		for j := range claim.Status.Devices {
			if d := &claim.Status.Devices[j]; d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device {
				conditions = d.Conditions
			}
		}
		for _, name := range r.BindingFailureConditions {
			if c := met(conditions, name); c != nil {
				return false, fmt.Errorf("%w: claim=%s, reason=%s, message=%q", ErrBinding, claim.Name, c.Reason,
					c.Message)
			}
		}
		for _, name := range r.BindingConditions {
			waits = waits || met(conditions, name) == nil
		}
	}
	if until := BindBy(claim, limit); waits && !until.IsZero() && !now.Before(until) {
		return false, fmt.Errorf("%w: claim=%s", ErrBindingTimeout, claim.Name)
	}
	return !waits, nil
}

// met is the condition of this type if it is true, else nil.
func met(conditions []metav1.Condition, name string) *metav1.Condition {
	for i := range conditions {
		if conditions[i].Type == name && conditions[i].Status == metav1.ConditionTrue {
			return &conditions[i]
		}
	}
	return nil
}

// BindBy returns the deadline for the devices of a claim to be ready; zero if none has binding
// conditions.
func BindBy(claim *resourcev1.ResourceClaim, limit time.Duration) time.Time {
	a := claim.Status.Allocation
	if a == nil || a.AllocationTimestamp == nil || !slices.ContainsFunc(a.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool { return len(r.BindingConditions) > 0 }) {
		return time.Time{}
	}
	return a.AllocationTimestamp.Add(limit)
}

// Freeable reports whether only this pod uses a claim, so that another allocation can be tried
// (S9.29).
func Freeable(claim *resourcev1.ResourceClaim, pod *corev1.Pod) bool {
	switch len(claim.Status.ReservedFor) {
	case 0:
		return true
	case 1:
		return claim.Status.ReservedFor[0].UID == pod.UID
	}
	return false
}

// Tainted returns slices with the taints of the rules added to their devices (S9.62). Slices that no rule selects are
// returned as they are.
func Tainted(list []*resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) []*resourcev1.ResourceSlice {
	if len(rules) == 0 {
		return list
	}
	out := slices.Clone(list)
	for i, s := range out {
		copied := false
		for _, r := range rules {
			sel := r.Spec.DeviceSelector
			if sel == nil || sel.Driver != nil && *sel.Driver != s.Spec.Driver ||
				sel.Pool != nil && *sel.Pool != s.Spec.Pool.Name {
				continue
			}
			for d := range s.Spec.Devices {
				if sel.Device != nil && *sel.Device != s.Spec.Devices[d].Name {
					continue
				}
				if !copied {
					copied = true
					s = s.DeepCopy()
					out[i] = s
				}
				s.Spec.Devices[d].Taints = append(s.Spec.Devices[d].Taints, r.Spec.Taint)
			}
		}
	}
	return out
}
