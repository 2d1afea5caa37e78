package pods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/core/resources"
)

// ValidatePodResize validates an update through the resize subresource (L1.116).
func ValidatePodResize(p, old *corev1.Pod) field.ErrorList {
	if _, mirror := old.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "windows pods cannot be resized")}
	}
	errs := apivalidation.ValidateObjectMetaUpdate(&p.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	errs = append(errs, changedPod(p, old)...)
	spec := field.NewPath("spec")
	if resources.ComputeQoS(p) != resources.QoS(old) {
		errs = append(errs, field.Invalid(spec, p.Status.QOSClass,
			"Pod QOS Class may not change as a result of resizing"))
	}
	if !reportsResources(old) {
		errs = append(errs, field.Forbidden(spec, "Pod running on node without support for resize"))
	}
	rest := p.Spec.DeepCopy()
	errs = append(errs, validateWholeResize(rest, &old.Spec, spec.Child("resources"))...)
	reordered := sameContainers("containers", p.Spec.Containers, old.Spec.Containers, spec)
	reordered = append(reordered,
		sameContainers("initContainers", p.Spec.InitContainers, old.Spec.InitContainers, spec)...)
	if errs = append(errs, reordered...); len(reordered) > 0 {
		return errs
	}
	for i := range rest.InitContainers {
		c, was, at := &rest.InitContainers[i], &old.Spec.InitContainers[i], spec.Child("initContainers").Index(i)
		changed := !apiequality.Semantic.DeepEqual(c, was)
		errs = append(errs, nothingRemoved(c.Resources, was.Resources, "resource", at.Child("resources"))...)
		if c.Resources = withoutAmounts(c.Resources, was.Resources); !apiequality.Semantic.DeepEqual(c, was) {
			errs = append(errs,
				field.Forbidden(at, "only cpu and memory resources for init or sidecar containers are mutable"))
		}
		if changed && !resources.IsSidecar(c) { // such pods were stored by servers that accepted them
			for _, policy := range c.ResizePolicy {
				if policy.RestartPolicy == corev1.RestartContainer {
					errs = append(errs,
						field.Forbidden(at,
							"non-sidecar init containers with a resize policy of RestartContainer cannot be resized"))
				}
			}
		}
	}
	for i := range rest.Containers {
		c, was := &rest.Containers[i], &old.Spec.Containers[i]
		errs = append(errs, nothingRemoved(c.Resources, was.Resources, "resource",
			spec.Child("containers").Index(i).Child("resources"))...)
		if c.Resources = withoutAmounts(c.Resources, was.Resources); !apiequality.Semantic.DeepEqual(c, was) {
			errs = append(errs, field.Forbidden(spec, "only cpu and memory resources are mutable"))
		}
	}
	if len(errs) == 0 && !apiequality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs, field.Forbidden(spec, "only cpu and memory resources are mutable"))
	}
	return errs
}

// reportsResources reports whether the pod's node reports the resources of its running containers.
func reportsResources(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.State.Running != nil {
			return c.Resources != nil
		}
	}
	return true
}

// validateWholeResize validates the pod-level resources, and removes from rest the parts that may
// change.
func validateWholeResize(rest, old *corev1.PodSpec, at *field.Path) field.ErrorList {
	set := func(r *corev1.ResourceRequirements) bool { return r != nil && len(r.Requests)+len(r.Limits) > 0 }
	switch {
	case !set(rest.Resources) && !set(old.Resources):
		return nil
	case rest.Resources == nil:
		return field.ErrorList{field.Forbidden(at, "pod-level resources cannot be removed")}
	}
	var errs field.ErrorList
	was := old.Resources
	if was == nil {
		was = &corev1.ResourceRequirements{}
	} else {
		errs = nothingRemoved(*rest.Resources, *was, "pod-level resource", at)
	}
	is := withoutAmounts(*rest.Resources, *was)
	if !apiequality.Semantic.DeepEqual(&is, was) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"),
			"only cpu and memory resources are mutable at pod-level"))
	}
	rest.Resources = old.Resources
	return errs
}

func sameContainers(name string, list, old []corev1.Container, spec *field.Path) field.ErrorList {
	if len(list) != len(old) {
		return field.ErrorList{field.Forbidden(spec.Child(name), name+" may not be added or removed on resize")}
	}
	var errs field.ErrorList
	for i := range list {
		if list[i].Name != old[i].Name {
			errs = append(errs,
				field.Forbidden(spec.Child(name).Index(i).Child("name"),
					name+" may not be renamed or reordered on resize"))
		}
	}
	return errs
}

// nothingRemoved rejects the removal of requests or limits; what is their name in the error.
func nothingRemoved(r, old corev1.ResourceRequirements, what string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, list := range []struct {
		name    string
		is, was corev1.ResourceList
	}{{"requests", r.Requests, old.Requests}, {"limits", r.Limits, old.Limits}} {
		for name := range list.was {
			if _, ok := list.is[name]; !ok {
				errs = append(errs,
					field.Forbidden(at.Child(list.name), fmt.Sprintf("%s %s cannot be removed", what, list.name)))
				break
			}
		}
	}
	return errs
}

// withoutAmounts returns resources with the previous amounts of CPU and memory.
func withoutAmounts(r, old corev1.ResourceRequirements) corev1.ResourceRequirements {
	undo := func(is, was corev1.ResourceList) corev1.ResourceList {
		out := is.DeepCopy()
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q, ok := was[name]; ok {
				if out == nil {
					out = corev1.ResourceList{}
				}
				out[name] = q.DeepCopy()
			} else {
				delete(out, name)
			}
		}
		return out
	}
	return corev1.ResourceRequirements{Limits: undo(r.Limits, old.Limits), Requests: undo(r.Requests, old.Requests),
		Claims: r.Claims}
}
