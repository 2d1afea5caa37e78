package pods

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
	"carob/internal/kinds/unchanged"
)

// updatable lists the fields of a stored pod's spec that may change (L1.61).
const updatable = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`," +
	"`spec.tolerations` (only additions to existing tolerations)," +
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

// ValidatePodUpdate validates an update of the main resource (L1.61–L1.67).
func ValidatePodUpdate(p, old *corev1.Pod) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&p.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	errs = append(errs, changedPod(p, old)...)
	errs = append(errs, validateAnnotationUpdate(p, old)...)
	if unchanged.Meaning(&p.Spec, &old.Spec) {
		return errs
	}

	spec := field.NewPath("spec")
	for _, list := range []struct {
		name    string
		cs, old []corev1.Container
	}{{"containers", p.Spec.Containers, old.Spec.Containers},
		{"initContainers", p.Spec.InitContainers, old.Spec.InitContainers}} {
		if len(list.cs) != len(list.old) {
			return append(errs, field.Forbidden(spec.Child(list.name), "pod updates may not add or remove containers"))
		}
	}
	more, stop := deadlineUpdate(p.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds,
		spec.Child("activeDeadlineSeconds"))
	if errs = append(errs, more...); stop {
		return errs
	}
	errs = append(errs, validateTolerationUpdate(p.Spec.Tolerations, old.Spec.Tolerations,
		spec.Child("tolerations"))...)
	errs = append(errs, validateGateUpdate(p.Spec.SchedulingGates, old.Spec.SchedulingGates,
		spec.Child("schedulingGates"))...)

	// After all permitted changes are undone, nothing may differ.
	rest := p.Spec.DeepCopy()
	for i := range rest.Containers {
		rest.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range rest.InitContainers {
		rest.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	rest.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	rest.Tolerations = old.Spec.Tolerations
	rest.SchedulingGates = old.Spec.SchedulingGates
	if g, was := rest.TerminationGracePeriodSeconds, old.Spec.TerminationGracePeriodSeconds; was != nil && *was < 0 &&
		g != nil && *g == 1 {
		rest.TerminationGracePeriodSeconds = was
	}
	if len(old.Spec.SchedulingGates) > 0 {
		errs = append(errs, validateGatedUpdate(rest, &old.Spec, spec)...)
	}
	if !apiequality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs,
			field.Forbidden(spec,
				fmt.Sprintf("pod updates may not change fields other than %s\n%v", updatable,
					rules.Diff(&old.Spec, rest))))
	}
	return errs
}

// validateAnnotationUpdate keeps the annotations of a pod that decide how it runs as they were when it was admitted:
// the node reads those of AppArmor for containers without a profile in their fields.
func validateAnnotationUpdate(p, old *corev1.Pod) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("metadata", "annotations")
	check := func(verb, key string) {
		switch {
		case strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix):
			errs = append(errs, field.Forbidden(at.Key(key), "may not "+verb+" AppArmor annotations"))
		case key == corev1.MirrorPodAnnotationKey:
			errs = append(errs, field.Forbidden(at.Key(key), "may not "+verb+" mirror pod annotation"))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(old.Annotations)) {
		if is, ok := p.Annotations[key]; !ok || is != old.Annotations[key] {
			check("remove or update", key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.Annotations)) {
		if _, ok := old.Annotations[key]; !ok {
			check("add", key)
		}
	}
	return errs
}

// deadlineUpdate allows a deadline to be set or shortened (L1.63).
func deadlineUpdate(d, old *int64, at *field.Path) (errs field.ErrorList, stop bool) {
	switch {
	case d == nil && old != nil:
		return field.ErrorList{field.Invalid(at, d, "must not update from a positive integer to nil value")}, false
	case d == nil:
		return nil, false
	case *d < 0 || *d > math.MaxInt32:
		return field.ErrorList{field.Invalid(at, *d, validation.InclusiveRangeError(0, math.MaxInt32))}, true
	case old != nil && *d > *old:
		return field.ErrorList{field.Invalid(at, *d, "must be less than or equal to previous value")}, true
	}
	return nil, false
}

// validateTolerationUpdate allows tolerations to be added and their seconds to be changed (L1.64).
func validateTolerationUpdate(list, old []corev1.Toleration, at *field.Path) field.ErrorList {
	kept := map[corev1.Toleration]bool{}
	for _, t := range list {
		t.TolerationSeconds = nil
		kept[t] = true
	}
	for _, o := range old {
		if o.TolerationSeconds = nil; !kept[o] {
			return field.ErrorList{field.Forbidden(at,
				"existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil
}

// validateGateUpdate allows scheduling gates to be removed (L1.66).
func validateGateUpdate(gates, old []corev1.PodSchedulingGate, at *field.Path) field.ErrorList {
	known, left := sets.New(old...), map[corev1.PodSchedulingGate]int{} // from here on
	for _, g := range gates {
		left[g]++
	}
	var errs field.ErrorList
	for i, g := range gates {
		if left[g]--; !known.Has(g) && left[g] == 0 {
			errs = append(errs,
				field.Forbidden(at.Index(i).Child("name"),
					fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", g.Name)))
		}
	}
	return errs
}

// validateGatedUpdate allows the node constraints of a gated pod to be tightened, and undoes in
// rest what it permits (L1.67).
func validateGatedUpdate(rest, old *corev1.PodSpec, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key, value := range old.NodeSelector {
		if got, ok := rest.NodeSelector[key]; !ok || got != value {
			errs = append(errs,
				field.Invalid(spec.Child("nodeSelector"), rest.NodeSelector,
					"only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
			break
		}
	}
	rest.NodeSelector = old.NodeSelector

	var is, was *corev1.NodeAffinity
	if rest.Affinity != nil {
		is = rest.Affinity.NodeAffinity
	}
	if old.Affinity != nil {
		was = old.Affinity.NodeAffinity
	}
	errs = append(errs, validateRequiredAffinityUpdate(is, was,
		spec.Child("affinity", "nodeAffinity", requiredField))...)
	switch {
	case rest.Affinity == nil && was != nil:
		rest.Affinity = &corev1.Affinity{NodeAffinity: was}
	case rest.Affinity != nil:
		rest.Affinity.NodeAffinity = was
		if was == nil && old.Affinity == nil && rest.Affinity.PodAffinity == nil &&
			rest.Affinity.PodAntiAffinity == nil {
			rest.Affinity = nil
		}
	}
	return errs
}

func validateRequiredAffinityUpdate(is, was *corev1.NodeAffinity, at *field.Path) field.ErrorList {
	if was == nil || was.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	terms := at.Child("nodeSelectorTerms")
	var now []corev1.NodeSelectorTerm
	if is != nil && is.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		now = is.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	before := was.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(now) != len(before) {
		return field.ErrorList{field.Invalid(terms, now,
			"no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	var errs field.ErrorList
	for i := range before {
		tightened := len(before[i].MatchExpressions)+len(before[i].MatchFields) > 0 ||
			apiequality.Semantic.DeepEqual(now[i], before[i])
		if !tightened || !containsRequirements(now[i].MatchExpressions, before[i].MatchExpressions) ||
			!containsRequirements(now[i].MatchFields, before[i].MatchFields) {
			errs = append(errs,
				field.Invalid(terms.Index(i), now[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

func containsRequirements(list, wanted []corev1.NodeSelectorRequirement) bool {
	text := func(r corev1.NodeSelectorRequirement) string {
		return fmt.Sprintf("%q %q %q", r.Key, r.Operator, r.Values)
	}
	has := sets.New[string]()
	for _, r := range list {
		has.Insert(text(r))
	}
	return !slices.ContainsFunc(wanted, func(r corev1.NodeSelectorRequirement) bool { return !has.Has(text(r)) })
}

// validateStateTransitions rejects a restart of a container that its restart policy leaves
// terminated (L1.71).
func validateStateTransitions(p, old *corev1.Pod, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	all := restartsAll(&old.Spec)
	check := func(list, before []corev1.ContainerStatus, name string, restarts func(name string, code int32) bool) {
		for i := range before {
			t := before[i].State.Terminated
			if t == nil || restarts(before[i].Name, t.ExitCode) {
				continue
			}
			for j := range list {
				if list[j].Name == before[i].Name && list[j].State.Terminated == nil {
					errs = append(errs,
						field.Forbidden(at.Child(name).Index(i).Child("state"),
							"may not be transitioned to non-terminated state"))
				}
			}
		}
	}
	check(p.Status.ContainerStatuses, old.Status.ContainerStatuses, "containerStatuses",
		func(name string, code int32) bool {
			return all || restarts(old.Spec.RestartPolicy, containerNamed(&old.Spec, name), code)
		})
	check(p.Status.InitContainerStatuses, old.Status.InitContainerStatuses, "initContainerStatuses",
		func(name string, code int32) bool {
			// A pod whose sandbox was lost runs its init containers again, but only if its restart
			// policy allows restarts.
			return all || old.Spec.RestartPolicy != corev1.RestartPolicyNever ||
				restarts(old.Spec.RestartPolicy, containerNamed(&old.Spec, name), code)
		})
	check(p.Status.EphemeralContainerStatuses, old.Status.EphemeralContainerStatuses, "ephemeralContainerStatuses",
		func(string, int32) bool { return false })
	return errs
}

// restartsAll reports whether the exit of one container may restart all of them.
func restartsAll(s *corev1.PodSpec) bool {
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			for _, r := range list[i].RestartPolicyRules {
				if r.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	return false
}

// restarts reports whether a container that exited with code runs again by the pod's policy and its
// own.
func restarts(pod corev1.RestartPolicy, c *corev1.Container, code int32) bool {
	if c != nil {
		for _, r := range c.RestartPolicyRules {
			if r.ExitCodes != nil && slices.Contains(r.ExitCodes.Values,
				code) == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
				return true
			}
		}
		if c.RestartPolicy != nil {
			pod = corev1.RestartPolicy(*c.RestartPolicy)
		}
	}
	return pod == corev1.RestartPolicyAlways || pod == corev1.RestartPolicyOnFailure && code != 0
}

// ValidateEphemeralContainersUpdate validates the list of debug containers, which only grows
// (L1.115).
func ValidateEphemeralContainersUpdate(p, old *corev1.Pod) field.ErrorList {
	at := field.NewPath("spec", "ephemeralContainers")
	if _, mirror := old.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	errs := changedPod(p, old)
	errs = append(errs, apivalidation.ValidateObjectMetaUpdate(&p.ObjectMeta, &old.ObjectMeta,
		field.NewPath("metadata"))...)
	errs = append(errs, validateAnnotationUpdate(p, old)...)
	first := map[string]int{} // where a container of this name is
	for i := range p.Spec.EphemeralContainers {
		if _, ok := first[p.Spec.EphemeralContainers[i].Name]; !ok {
			first[p.Spec.EphemeralContainers[i].Name] = i
		}
	}
	for i := range old.Spec.EphemeralContainers {
		o := &old.Spec.EphemeralContainers[i]
		j, kept := first[o.Name]
		switch {
		case !kept:
			errs = append(errs,
				field.Forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", o.Name)))
		case !apiequality.Semantic.DeepEqual(&p.Spec.EphemeralContainers[j], o):
			errs = append(errs,
				field.Forbidden(at,
					fmt.Sprintf("existing ephemeral containers %q may not be changed\n%v", o.Name,
						rules.Diff(o, &p.Spec.EphemeralContainers[j]))))
		}
	}
	return errs
}

// ValidateBinding validates the target of a binding (L1.80).
func ValidateBinding(b *corev1.Binding) field.ErrorList {
	var errs field.ErrorList
	target := field.NewPath("target")
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		errs = append(errs, field.NotSupported(target.Child("kind"), b.Target.Kind, []string{"Node", "<empty>"}))
	}
	switch {
	case b.Target.Name == "":
		errs = append(errs, field.Required(target.Child("name"), ""))
	case len(errs) == 0:
		errs = rules.Messages(target.Child("name"), b.Target.Name,
			apivalidation.NameIsDNSSubdomain(b.Target.Name, false))
	}
	return errs
}
