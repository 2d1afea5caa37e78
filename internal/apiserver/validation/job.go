package validation

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
)

func job(j *batchv1.Job) field.ErrorList {
	errs := generatedSelector(j)
	errs = append(errs, jobSpec(&j.Spec, specPath)...)
	errs = append(errs, jobSelector(&j.Spec, false)...)
	if n := j.Spec.Completions; indexed(&j.Spec) && n != nil && *n > 0 {
		// The last pod's host name is the longest.
		if host := fmt.Sprintf("%s-%d", j.Name, *n-1); len(validation.IsDNS1123Label(host)) > 0 {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), j.Name, "will not able to create pod with invalid DNS label: "+host))
		}
	}
	return errs
}

func indexed(s *batchv1.JobSpec) bool {
	return s.CompletionMode != nil && *s.CompletionMode == batchv1.IndexedCompletion
}

// generatedSelector checks that a client has not got in the way of the labels and
// the selector that are made for a job.
func generatedSelector(j *batchv1.Job) field.ErrorList {
	if m := j.Spec.ManualSelector; m != nil && *m || j.Spec.Selector == nil {
		return nil
	}
	own := map[string]string{"controller-uid": string(j.UID), "job-name": j.Name, batchv1.ControllerUidLabel: string(j.UID), batchv1.JobNameLabel: j.Name}
	var errs field.ErrorList
	at := specPath.Child("template", "metadata", "labels")
	for _, key := range []string{"controller-uid", "job-name", batchv1.ControllerUidLabel, batchv1.JobNameLabel} {
		if is, ok := j.Spec.Template.Labels[key]; !ok {
			errs = append(errs, field.Required(at.Key(key), fmt.Sprintf("must be '%s'", own[key])))
		} else if is != own[key] {
			errs = append(errs, field.Invalid(at.Key(key), j.Spec.Template.Labels, fmt.Sprintf("must be '%s'", own[key])))
		}
	}
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !s.Matches(labels.Set(own)) {
		errs = append(errs, field.Invalid(specPath.Child("selector"), j.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}

func jobSelector(s *batchv1.JobSpec, keptValues bool) field.ErrorList {
	at := specPath.Child("selector")
	if s.Selector == nil {
		return field.ErrorList{field.Required(at, ""), field.Invalid(specPath.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`")}
	}
	errs := metav1validation.ValidateLabelSelector(s.Selector, metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: keptValues}, at)
	if selects, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil && !selects.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(specPath.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

func jobSpec(s *batchv1.JobSpec, at *field.Path) field.ErrorList {
	const maxIndexedParallelism = 100_000
	errs := nonNegative(s.Parallelism, at.Child("parallelism"))
	errs = append(errs, nonNegative(s.Completions, at.Child("completions"))...)
	errs = append(errs, nonNegative(s.ActiveDeadlineSeconds, at.Child("activeDeadlineSeconds"))...)
	errs = append(errs, nonNegative(s.BackoffLimit, at.Child("backoffLimit"))...)
	errs = append(errs, nonNegative(s.TTLSecondsAfterFinished, at.Child("ttlSecondsAfterFinished"))...)
	errs = append(errs, nonNegative(s.BackoffLimitPerIndex, at.Child("backoffLimitPerIndex"))...)
	errs = append(errs, nonNegative(s.MaxFailedIndexes, at.Child("maxFailedIndexes"))...)
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(at.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	if s.CompletionMode != nil {
		errs = append(errs, supported(string(*s.CompletionMode), at.Child("completionMode"), string(batchv1.NonIndexedCompletion), string(batchv1.IndexedCompletion))...)
	}
	if indexed(s) {
		if s.Completions == nil {
			errs = append(errs, field.Required(at.Child("completions"), fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion)))
		}
		if s.Parallelism != nil && *s.Parallelism > maxIndexedParallelism {
			errs = append(errs, field.Invalid(at.Child("parallelism"), *s.Parallelism, fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexedParallelism, batchv1.IndexedCompletion)))
		}
	} else if s.BackoffLimitPerIndex != nil && (s.CompletionMode == nil || *s.CompletionMode == batchv1.NonIndexedCompletion) {
		errs = append(errs, field.Invalid(at.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, "requires indexed completion mode"))
	}
	errs = append(errs, jobPolicies(s, at)...)
	errs = append(errs, podTemplate(&s.Template, at.Child("template"))...)
	policy := at.Child("template", "spec", "restartPolicy")
	switch p := s.Template.Spec.RestartPolicy; {
	case p == "" || p == corev1.RestartPolicyAlways:
		errs = append(errs, field.Required(policy, `valid values: "OnFailure", "Never"`))
	case p != corev1.RestartPolicyOnFailure && p != corev1.RestartPolicyNever:
		errs = append(errs, field.NotSupported(policy, p, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	case p != corev1.RestartPolicyNever && s.PodFailurePolicy != nil:
		errs = append(errs, field.Invalid(policy, p, fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever)))
	}
	return errs
}

func jobUpdate(j, old *batchv1.Job) field.ErrorList {
	s, was := &j.Spec, &old.Spec
	errs := jobSpec(s, specPath)
	errs = append(errs, jobSelector(s, was.Selector != nil && hasBadValues(was.Selector))...)
	completions := specPath.Child("completions")
	switch {
	case !indexed(s):
		errs = append(errs, immutableSelector(s.Completions, was.Completions, completions)...)
	case s.Completions != nil && s.Parallelism != nil && *s.Completions != *s.Parallelism && !apiequality.Semantic.DeepEqual(s.Completions, was.Completions):
		errs = append(errs, field.Invalid(completions, s.Completions, "can only be modified in tandem with spec.parallelism"))
	}
	errs = append(errs, immutableSelector(s.Selector, was.Selector, specPath.Child("selector"))...)
	errs = append(errs, jobTemplateUpdate(s, old)...)
	errs = append(errs, immutableSelector(s.CompletionMode, was.CompletionMode, specPath.Child("completionMode"))...)
	errs = append(errs, immutableSelector(s.PodFailurePolicy, was.PodFailurePolicy, specPath.Child("podFailurePolicy"))...)
	errs = append(errs, immutableSelector(s.BackoffLimitPerIndex, was.BackoffLimitPerIndex, specPath.Child("backoffLimitPerIndex"))...)
	errs = append(errs, immutableSelector(s.ManagedBy, was.ManagedBy, specPath.Child("managedBy"))...)
	return append(errs, immutableSelector(s.SuccessPolicy, was.SuccessPolicy, specPath.Child("successPolicy"))...)
}

// jobTemplateUpdate lets a suspended job none of whose pods runs be directed
// elsewhere and get other resources.
func jobTemplateUpdate(s *batchv1.JobSpec, old *batchv1.Job) field.ErrorList {
	suspended := old.Spec.Suspend != nil && *old.Spec.Suspend
	waits := slices.ContainsFunc(old.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobSuspended && c.Status == corev1.ConditionTrue
	})
	if !suspended || old.Status.StartTime != nil && !waits || old.Status.Active > 0 {
		return immutableSelector(&s.Template, &old.Spec.Template, specPath.Child("template"))
	}
	is, was := &s.Template.Spec, old.Spec.Template.Spec.DeepCopy()
	was.NodeSelector, was.Tolerations, was.SchedulingGates = is.NodeSelector, is.Tolerations, is.SchedulingGates
	was.Affinity = withNodeAffinity(was.Affinity, is.Affinity)
	for _, list := range []struct{ is, was []corev1.Container }{{is.Containers, was.Containers}, {is.InitContainers, was.InitContainers}} {
		for i := range list.is {
			if len(list.is) == len(list.was) && list.is[i].Name == list.was[i].Name {
				list.was[i].Resources = list.is[i].Resources
			}
		}
	}
	return immutableSelector(is, was, specPath.Child("template.spec"))
}

// withNodeAffinity returns an affinity with the node affinity of another.
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
