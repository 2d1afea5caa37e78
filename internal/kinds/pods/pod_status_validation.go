package pods

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"carob/internal/kinds/rules"
)

// ValidatePodStatusUpdate validates a write to the status subresource (L1.71).
func ValidatePodStatusUpdate(p, old *corev1.Pod) field.ErrorList {
	const natural = "must be a non-negative integer"
	errs := apivalidation.ValidateObjectMetaUpdate(&p.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	errs = append(errs, validateAnnotationUpdate(p, old)...)
	at := rules.StatusPath
	for i := range p.Status.Conditions {
		c, at := &p.Status.Conditions[i], at.Child("conditions").Index(i)
		if c.ObservedGeneration < 0 {
			errs = append(errs, field.Invalid(at.Child("observedGeneration"), c.ObservedGeneration, natural))
		}
		errs = append(errs, rules.Messages(at.Child("Type"), string(c.Type),
			validation.IsQualifiedName(string(c.Type)))...)
	}
	if p.Spec.NodeName != old.Spec.NodeName {
		errs = append(errs, field.Forbidden(at.Child("nodeName"), "may not be changed directly"))
	}
	if n := p.Status.NominatedNodeName; n != old.Status.NominatedNodeName && n != "" {
		errs = append(errs, rules.Messages(at.Child("nominatedNodeName"), n,
			apivalidation.NameIsDNSSubdomain(n, false))...)
		if old.Spec.NodeName != "" {
			errs = append(errs,
				field.Forbidden(at.Child("nominatedNodeName"),
					"may not be set on pods that are already bound to a node"))
		}
	}
	if p.Status.ObservedGeneration < 0 {
		errs = append(errs, field.Invalid(at.Child("observedGeneration"), p.Status.ObservedGeneration, natural))
	}
	if old.Status.QOSClass != "" && p.Status.QOSClass != old.Status.QOSClass {
		errs = append(errs, field.Invalid(at.Child("qosClass"), p.Status.QOSClass,
			apivalidation.FieldImmutableErrorMsg))
	}
	errs = append(errs, validateStateTransitions(p, old, at)...)
	errs = append(errs, validateClaimStatuses(p, at)...)
	errs = append(errs, validatePodIPs(p, old, at)...)
	errs = append(errs, validateHostIPs(p, old, at)...)
	for _, list := range []struct {
		name       string
		statuses   []corev1.ContainerStatus
		containers []corev1.Container
	}{{"containerStatuses", p.Status.ContainerStatuses, p.Spec.Containers},
		{"initContainerStatuses", p.Status.InitContainerStatuses, p.Spec.InitContainers},
		{"ephemeralContainerStatuses", p.Status.EphemeralContainerStatuses, nil}} {
		for i := range list.statuses {
			s, at := &list.statuses[i], at.Child(list.name).Index(i)
			errs = append(errs, validateContainerUser(s.User, p.Spec.OS, at.Child("user", "linux"))...)
			errs = append(errs,
				validateResourceHealth(s, list.containers, p.Status.ExtendedResourceClaimStatus,
					at.Child("allocatedResourcesStatus"))...)
		}
	}
	return errs
}

func texts[T any](list []T, text func(T) string) (out []string) {
	for _, x := range list {
		out = append(out, text(x))
	}
	return out
}

func validatePodIPs(p, old *corev1.Pod, at *field.Path) field.ErrorList {
	at = at.Child("podIPs")
	text := func(ip corev1.PodIP) string { return ip.IP }
	ips := texts(p.Status.PodIPs, text)
	errs := perFamily(ips, texts(old.Status.PodIPs, text), p.Status.PodIPs, at)
	switch {
	case (p.Status.PodIP == "") != (len(ips) == 0):
		errs = append(errs, field.Invalid(at, p.Status.PodIPs,
			"podIP and podIPs must either both be set or both be unset"))
	case len(ips) > 0 && ips[0] != p.Status.PodIP:
		errs = append(errs, field.Invalid(at.Index(0).Child("ip"), ips[0], "must be equal to `podIP`"))
	}
	return errs
}

func validateHostIPs(p, old *corev1.Pod, at *field.Path) field.ErrorList {
	at = at.Child("hostIPs")
	text := func(ip corev1.HostIP) string { return ip.IP }
	ips := texts(p.Status.HostIPs, text)
	errs := perFamily(ips, texts(old.Status.HostIPs, text), p.Status.HostIPs, at)
	if len(ips) > 0 && ips[0] != p.Status.HostIP {
		errs = append(errs, field.Invalid(at.Index(0).Child("ip"), ips[0], "must be equal to `hostIP`"))
	}
	return errs
}

// perFamily validates addresses, at most one of each family; known ones may have an old form.
func perFamily(ips, known []string, shown any, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	families, kept := map[bool]int{}, sets.New(known...)
	for i, ip := range ips {
		errs = append(errs, rules.LegacyIP(at.Index(i), ip, kept)...)
		if rules.IsIP(ip) {
			families[strings.Contains(ip, ":")]++
		}
	}
	if len(ips) > 1 {
		if _, err := netutils.IsDualStackIPStrings(ips); err != nil {
			errs = append(errs,
				field.InternalError(at, fmt.Errorf("failed to check for dual stack with error:%w", err)))
		}
	}
	if len(ips) > 1 && (len(ips) > 2 || families[true] != 1 || families[false] != 1) {
		errs = append(errs, field.Invalid(at, shown, "may specify no more than one IP for each IP family"))
	}
	return errs
}

// validateClaimStatuses validates which device claims were created for the pod.
func validateClaimStatuses(p *corev1.Pod, at *field.Path) field.ErrorList {
	claims := sets.New[string]()
	for _, c := range p.Spec.ResourceClaims {
		claims.Insert(c.Name)
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, s := range p.Status.ResourceClaimStatuses {
		at := at.Child("resourceClaimStatuses").Index(i)
		if !claims.Has(s.Name) {
			errs = append(errs,
				field.Invalid(at.Child("name"), s.Name, "must match the name of an entry in `spec.resourceClaims`"))
		}
		if seen.Has(s.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), s.Name))
		}
		seen.Insert(s.Name)
		if n := s.ResourceClaimName; n != nil {
			errs = append(errs,
				rules.Messages(at.Child("resourceClaimName"), *n, apivalidation.NameIsDNSSubdomain(*n, false))...)
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		errs = append(errs, validateExtendedClaim(s, &p.Spec, at.Child("extendedResourceClaimStatus"))...)
	}
	return errs
}

// validateExtendedClaim validates the claim that was created for a pod's extended resources.
func validateExtendedClaim(s *corev1.PodExtendedResourceClaimStatus, spec *corev1.PodSpec,
	at *field.Path) field.ErrorList {
	mappings := at.Child("requestMappings")
	var errs field.ErrorList
	if len(s.RequestMappings) == 0 {
		errs = append(errs, field.Required(mappings, "at least one request mapping is required"))
	}
	seen := sets.New[corev1.ContainerExtendedResourceRequest]()
	for i, m := range s.RequestMappings {
		at1 := mappings.Index(i)
		if c := containerNamed(spec, m.ContainerName); c == nil {
			errs = append(errs,
				field.Invalid(at1.Child("containerName"), m.ContainerName,
					"must match the name of an entry in spec.initContainers.name or spec.containers.name"))
		} else if _, ok := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]; !ok {
			errs = append(errs,
				field.Invalid(at1.Child("resourceName"), m.ResourceName,
					"must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests"))
		}
		errs = append(errs, rules.Messages(at.Child("requestName"), m.RequestName,
			validation.IsDNS1123Label(m.RequestName))...)
		if seen.Has(m) {
			errs = append(errs, field.Duplicate(at1.Child("containerName"), m.ContainerName),
				field.Duplicate(at1.Child("resourceName"), m.ResourceName),
				field.Duplicate(at1.Child("requestName"), m.RequestName))
		}
		seen.Insert(m)
	}
	if s.ResourceClaimName == "" {
		return append(errs, field.Required(at.Child("resourceClaimName"), ""))
	}
	return append(errs, rules.Messages(at.Child("resourceClaimName"), s.ResourceClaimName,
		apivalidation.NameIsDNSSubdomain(s.ResourceClaimName, false))...)
}

func validateContainerUser(u *corev1.ContainerUser, os *corev1.PodOS, at *field.Path) field.ErrorList {
	if u == nil || u.Linux == nil {
		return nil
	}
	if os != nil && os.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(at, "cannot be set for a windows pod")}
	}
	var errs field.ErrorList
	if u.Linux.UID < 0 || u.Linux.UID > math.MaxUint32 {
		errs = append(errs, field.Invalid(at.Child("uid"), u.Linux.UID,
			fmt.Sprintf("must be between 0 and %d, inclusive", int64(math.MaxUint32))))
	}
	errs = append(errs, rules.Messages(at.Child("gid"), u.Linux.GID, validation.IsValidGroupID(u.Linux.GID))...)
	for i, g := range u.Linux.SupplementalGroups {
		errs = append(errs, rules.Messages(at.Child("supplementalGroups").Index(i), g, validation.IsValidGroupID(g))...)
	}
	return errs
}

// validateResourceHealth validates the health of a container's devices: they must be resources that
// the container requests.
func validateResourceHealth(s *corev1.ContainerStatus, containers []corev1.Container,
	extended *corev1.PodExtendedResourceClaimStatus, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, r := range s.AllocatedResourcesStatus {
		at := at.Index(i)
		for j := range containers {
			if c := &containers[j]; c.Name == s.Name {
				errs = append(errs, validateRequested(c, r.Name, extended, at.Child("name"))...)
			}
		}
		seen := sets.New[corev1.ResourceID]()
		for j, h := range r.Resources {
			at := at.Child("resources").Index(j)
			errs = append(errs,
				rules.Supported(string(h.Health), at.Child("health"), string(corev1.ResourceHealthStatusHealthy),
					string(corev1.ResourceHealthStatusUnhealthy), string(corev1.ResourceHealthStatusUnknown))...)
			if seen.Has(h.ResourceID) {
				errs = append(errs, field.Duplicate(at.Child("resourceID"), h.ResourceID))
			}
			seen.Insert(h.ResourceID)
		}
	}
	return errs
}

func validateRequested(c *corev1.Container, name corev1.ResourceName, extended *corev1.PodExtendedResourceClaimStatus,
	at *field.Path) field.ErrorList {
	claim, isClaim := strings.CutPrefix(string(name), "claim:")
	if !isClaim {
		if _, ok := c.Resources.Requests[name]; ok {
			return nil
		}
		return field.ErrorList{field.Invalid(at, name, "must match one of the container's resource requests")}
	}
	for _, r := range c.Resources.Claims {
		if r.Request == "" && claim == r.Name || r.Request != "" && claim == r.Name+"/"+r.Request {
			return nil
		}
	}
	if extended != nil {
		for _, m := range extended.RequestMappings {
			q := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]
			if m.ContainerName == c.Name && claim == extended.ResourceClaimName+"/"+m.RequestName && !q.IsZero() {
				return nil
			}
		}
	}
	return field.ErrorList{field.Invalid(at, name,
		"must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty")}
}
