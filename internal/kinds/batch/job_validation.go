package batch

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/pods"
	"carob/internal/kinds/rules"
)

func validateJob(j *batchv1.Job) field.ErrorList {
	errs := validateGeneratedSelector(j)
	errs = append(errs, validateJobSpec(&j.Spec, rules.SpecPath)...)
	errs = append(errs, validateJobSelector(&j.Spec, false)...)
	if n := j.Spec.Completions; indexed(&j.Spec) && n != nil && *n > 0 {
		// The last pod's host name is the longest.
		if host := fmt.Sprintf("%s-%d", j.Name, *n-1); len(validation.IsDNS1123Label(host)) > 0 {
			errs = append(errs,
				field.Invalid(field.NewPath("metadata", "name"), j.Name,
					"will not able to create pod with invalid DNS label: "+host))
		}
	}
	return errs
}

func indexed(s *batchv1.JobSpec) bool {
	return s.CompletionMode != nil && *s.CompletionMode == batchv1.IndexedCompletion
}

// validateGeneratedSelector checks that the client has not overridden the generated selector and
// labels of a job.
func validateGeneratedSelector(j *batchv1.Job) field.ErrorList {
	if m := j.Spec.ManualSelector; m != nil && *m || j.Spec.Selector == nil {
		return nil
	}
	own := map[string]string{"controller-uid": string(j.UID), "job-name": j.Name,
		batchv1.ControllerUidLabel: string(j.UID), batchv1.JobNameLabel: j.Name}
	var errs field.ErrorList
	at := rules.SpecPath.Child("template", "metadata", "labels")
	for _, key := range []string{"controller-uid", "job-name", batchv1.ControllerUidLabel, batchv1.JobNameLabel} {
		if is, ok := j.Spec.Template.Labels[key]; !ok {
			errs = append(errs, field.Required(at.Key(key), fmt.Sprintf("must be '%s'", own[key])))
		} else if is != own[key] {
			errs = append(errs,
				field.Invalid(at.Key(key), j.Spec.Template.Labels, fmt.Sprintf("must be '%s'", own[key])))
		}
	}
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !s.Matches(labels.Set(own)) {
		errs = append(errs, field.Invalid(rules.SpecPath.Child("selector"), j.Spec.Selector,
			"`selector` not auto-generated"))
	}
	return errs
}

func validateJobSelector(s *batchv1.JobSpec, keptValues bool) field.ErrorList {
	at := rules.SpecPath.Child("selector")
	if s.Selector == nil {
		return field.ErrorList{field.Required(at, ""),
			field.Invalid(rules.SpecPath.Child("template", "metadata", "labels"), s.Template.Labels,
				"`selector` does not match template `labels`")}
	}
	errs := metav1validation.ValidateLabelSelector(s.Selector,
		metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: keptValues}, at)
	if selects, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil &&
		!selects.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(rules.SpecPath.Child("template", "metadata", "labels"), s.Template.Labels,
			"`selector` does not match template `labels`"))
	}
	return errs
}

func validateJobSpec(s *batchv1.JobSpec, at *field.Path) field.ErrorList {
	const maxIndexedParallelism = 100_000
	errs := rules.NonNegative(s.Parallelism, at.Child("parallelism"))
	errs = append(errs, rules.NonNegative(s.Completions, at.Child("completions"))...)
	errs = append(errs, rules.NonNegative(s.ActiveDeadlineSeconds, at.Child("activeDeadlineSeconds"))...)
	errs = append(errs, rules.NonNegative(s.BackoffLimit, at.Child("backoffLimit"))...)
	errs = append(errs, rules.NonNegative(s.TTLSecondsAfterFinished, at.Child("ttlSecondsAfterFinished"))...)
	errs = append(errs, rules.NonNegative(s.BackoffLimitPerIndex, at.Child("backoffLimitPerIndex"))...)
	errs = append(errs, rules.NonNegative(s.MaxFailedIndexes, at.Child("maxFailedIndexes"))...)
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(at.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	if s.CompletionMode != nil {
		errs = append(errs, rules.Supported(string(*s.CompletionMode), at.Child("completionMode"),
			string(batchv1.NonIndexedCompletion), string(batchv1.IndexedCompletion))...)
	}
	if indexed(s) {
		if s.Completions == nil {
			errs = append(errs,
				field.Required(at.Child("completions"),
					fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion)))
		}
		if s.Parallelism != nil && *s.Parallelism > maxIndexedParallelism {
			errs = append(errs,
				field.Invalid(at.Child("parallelism"), *s.Parallelism,
					fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexedParallelism,
						batchv1.IndexedCompletion)))
		}
	} else if s.BackoffLimitPerIndex != nil &&
		(s.CompletionMode == nil || *s.CompletionMode == batchv1.NonIndexedCompletion) {
		errs = append(errs, field.Invalid(at.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex,
			"requires indexed completion mode"))
	}
	errs = append(errs, validateJobPolicies(s, at)...)
	errs = append(errs, pods.ValidateTemplate(&s.Template, at.Child("template"))...)
	policy := at.Child("template", "spec", "restartPolicy")
	switch p := s.Template.Spec.RestartPolicy; {
	case p == "" || p == corev1.RestartPolicyAlways:
		errs = append(errs, field.Required(policy, `valid values: "OnFailure", "Never"`))
	case p != corev1.RestartPolicyOnFailure && p != corev1.RestartPolicyNever:
		errs = append(errs, field.NotSupported(policy, p,
			[]corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	case p != corev1.RestartPolicyNever && s.PodFailurePolicy != nil:
		errs = append(errs,
			field.Invalid(policy, p,
				fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever)))
	}
	return errs
}

func validateJobUpdate(j, old *batchv1.Job) field.ErrorList {
	s, was := &j.Spec, &old.Spec
	errs := validateJobSpec(s, rules.SpecPath)
	errs = append(errs, validateJobSelector(s, was.Selector != nil && rules.HasBadLabelValues(was.Selector))...)
	completions := rules.SpecPath.Child("completions")
	switch {
	case !indexed(s):
		errs = append(errs, rules.ImmutableSelector(s.Completions, was.Completions, completions)...)
	case s.Completions != nil && s.Parallelism != nil && *s.Completions != *s.Parallelism &&
		!apiequality.Semantic.DeepEqual(s.Completions, was.Completions):
		errs = append(errs, field.Invalid(completions, s.Completions,
			"can only be modified in tandem with spec.parallelism"))
	}
	errs = append(errs, rules.ImmutableSelector(s.Selector, was.Selector, rules.SpecPath.Child("selector"))...)
	errs = append(errs, validateJobTemplateUpdate(s, old)...)
	errs = append(errs, rules.ImmutableSelector(s.CompletionMode, was.CompletionMode,
		rules.SpecPath.Child("completionMode"))...)
	errs = append(errs, rules.ImmutableSelector(s.PodFailurePolicy, was.PodFailurePolicy,
		rules.SpecPath.Child("podFailurePolicy"))...)
	errs = append(errs, rules.ImmutableSelector(s.BackoffLimitPerIndex, was.BackoffLimitPerIndex,
		rules.SpecPath.Child("backoffLimitPerIndex"))...)
	errs = append(errs, rules.ImmutableSelector(s.ManagedBy, was.ManagedBy, rules.SpecPath.Child("managedBy"))...)
	return append(errs, rules.ImmutableSelector(s.SuccessPolicy, was.SuccessPolicy,
		rules.SpecPath.Child("successPolicy"))...)
}

// validateJobTemplateUpdate allows a suspended job without running pods to change its scheduling
// constraints and resources.
func validateJobTemplateUpdate(s *batchv1.JobSpec, old *batchv1.Job) field.ErrorList {
	suspended := old.Spec.Suspend != nil && *old.Spec.Suspend
	waits := slices.ContainsFunc(old.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobSuspended && c.Status == corev1.ConditionTrue
	})
	if !suspended || old.Status.StartTime != nil && !waits || old.Status.Active > 0 {
		return rules.ImmutableSelector(&s.Template, &old.Spec.Template, rules.SpecPath.Child("template"))
	}
	is, was := &s.Template.Spec, old.Spec.Template.Spec.DeepCopy()
	was.NodeSelector, was.Tolerations, was.SchedulingGates = is.NodeSelector, is.Tolerations, is.SchedulingGates
	was.Affinity = withNodeAffinity(was.Affinity, is.Affinity)
	for _, list := range []struct{ is, was []corev1.Container }{{is.Containers, was.Containers},
		{is.InitContainers, was.InitContainers}} {
		for i := range list.is {
			if len(list.is) == len(list.was) && list.is[i].Name == list.was[i].Name {
				list.was[i].Resources = list.is[i].Resources
			}
		}
	}
	return rules.ImmutableSelector(is, was, rules.SpecPath.Child("template.spec"))
}

// withNodeAffinity returns an affinity with the node affinity of another one.
func withNodeAffinity(a, of *corev1.Affinity) *corev1.Affinity {
	var out corev1.Affinity
	if a != nil {
		out = *a
	}
	out.NodeAffinity = nil
	if of != nil {
		out.NodeAffinity = of.NodeAffinity
	}
	if of == nil && out == (corev1.Affinity{}) {
		return nil
	}
	return &out
}

func jobSpecWarnings(s *batchv1.JobSpec, at *field.Path) []string {
	if s.CompletionMode == nil || *s.CompletionMode != batchv1.IndexedCompletion ||
		ptr.Deref(s.Completions, 0) <= indexesLimit || ptr.Deref(s.Parallelism, 0) <= indexesAtOnce {
		return nil
	}
	return []string{at.String() +
		": In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"}
}

// indexesLimit is the number of indexes that the status of a job with this parallelism can list.
const indexesLimit, indexesAtOnce = 100_000, 10_000
