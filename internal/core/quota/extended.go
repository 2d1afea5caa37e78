package quota

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Lookup finds other objects that say what a ResourceClaim uses: devices of a class that has the name of an extended
// resource count as that resource, too, unless the pod that the claim was made for already counts them.
type Lookup interface {
	// Classes returns all DeviceClasses.
	Classes() ([]*resourcev1.DeviceClass, error)
	// Pod returns a pod, nil if there is none.
	Pod(namespace, name string) (*corev1.Pod, error)
	// Claims returns the ResourceClaims of a namespace.
	Claims(namespace string) ([]*resourcev1.ResourceClaim, error)
}

// impliedName is how quotas name the extended resource of each class.
const impliedName = corev1.ResourceImplicitExtendedClaimsPerClass

// isClassResource reports whether a class has the extended resource that a quota limits. If that cannot be found out it
// may have it: the usage has the error.
func isClassResource(look Lookup, name string) bool {
	limited, ok := strings.CutPrefix(name, requests)
	implied, isImplied := strings.CutPrefix(name, impliedName)
	if look == nil || !ok || !isImplied && isNative(name) {
		return false
	}
	classes, err := look.Classes()
	for _, c := range classes {
		if isImplied && c.Name == implied ||
			c.Spec.ExtendedResourceName != nil && *c.Spec.ExtendedResourceName == limited {
			return true
		}
	}
	return err != nil
}

// addExtended adds the extended resources that the devices of a claim are, but for those that its pod already counts.
func addExtended(look Lookup, c *resourcev1.ResourceClaim, used corev1.ResourceList, now time.Time) error {
	classes, err := look.Classes()
	if err != nil {
		return err
	}
	names := map[string]string{} // of extended resources, by class
	for _, class := range classes {
		if class.Spec.ExtendedResourceName != nil {
			names[class.Name] = *class.Spec.ExtendedResourceName
		}
	}
	extended := corev1.ResourceList{}
	add := func(name string, n resource.Quantity) {
		q := extended[corev1.ResourceName(name)]
		q.Add(n)
		extended[corev1.ResourceName(name)] = q
	}
	for name, n := range used { // any order: sums
		class, ok := strings.CutSuffix(string(name), corev1.ResourceClaimsPerClass)
		if !ok || class == "" {
			continue
		}
		add(impliedName+class, n)
		if names[class] != "" {
			add(requests+names[class], n)
		}
	}
	counted, err := countedByPod(look, c, now)
	if err != nil {
		return err
	}
	for name, n := range extended { // any order: each name is separate
		n.Sub(counted[name])
		if n.Sign() > 0 {
			used[name] = n
		}
	}
	return nil
}

// countedByPod returns the usage of the pod whose extended resources a claim was made for; nothing for other claims,
// also for those that only say so: one claim of a pod is the one of its status, or else its oldest.
func countedByPod(look Lookup, c *resourcev1.ResourceClaim, now time.Time) (corev1.ResourceList, error) {
	owner := podOf(c)
	if owner == nil {
		return nil, nil
	}
	pod, err := look.Pod(c.Namespace, owner.Name)
	if err != nil || pod == nil || pod.UID != owner.UID {
		return nil, err
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		if s.ResourceClaimName != c.Name {
			return nil, nil
		}
		return PodUsage(pod, now), nil
	}
	all, err := look.Claims(c.Namespace)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		if of := podOf(o); of != nil && of.UID == pod.UID && before(o, c) {
			return nil, nil
		}
	}
	return PodUsage(pod, now), nil
}

// podOf is the pod whose extended resources a claim says that it was made for; nil for other claims.
func podOf(c *resourcev1.ResourceClaim) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(c)
	if c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || owner == nil || owner.Kind != "Pod" ||
		owner.APIVersion != "v1" {
		return nil
	}
	return owner
}

// before reports whether a claim was created before another one; of two at the same time the first name counts.
func before(o, than *resourcev1.ResourceClaim) bool {
	a, b := o.CreationTimestamp.Time, than.CreationTimestamp.Time
	return a.Before(b) || a.Equal(b) && o.Name < than.Name
}
