package batch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// Limits of a job's policies.
const (
	maxJobRules      = 20
	maxExitCodes     = 255
	maxJobConditions = 20
	maxJobIndexes    = 64 << 10 // bytes of an index list
	maxManagedBy     = 63
	manyIndexes      = 100_000 // completions above which a job with a back-off limit per index has stricter limits
	fewAtOnce        = 10_000
)

// validateJobPolicies validates the rules about failed and successful pods, and managedBy.
func validateJobPolicies(s *batchv1.JobSpec, at *field.Path) field.ErrorList {
	errs := validateFailedIndexes(s, at)
	if s.ManagedBy != nil {
		errs = append(errs, validation.IsDomainPrefixedPath(at.Child("managedBy"), *s.ManagedBy)...)
		if len(*s.ManagedBy) > maxManagedBy {
			errs = append(errs, field.TooLong(at.Child("managedBy"), "", maxManagedBy))
		}
	}
	if s.PodFailurePolicy != nil {
		errs = append(errs, validateFailurePolicy(s, at.Child("podFailurePolicy", "rules"))...)
	}
	if s.SuccessPolicy != nil {
		if s.CompletionMode == nil || *s.CompletionMode != batchv1.IndexedCompletion {
			errs = append(errs,
				field.Invalid(at.Child("successPolicy"), *s.SuccessPolicy, "requires indexed completion mode"))
		} else if s.Completions != nil {
			errs = append(errs, validateSuccessPolicy(s, at.Child("successPolicy", "rules"))...)
		}
	}
	if p := s.PodReplacementPolicy; p != nil {
		allowed := []batchv1.PodReplacementPolicy{batchv1.Failed}
		if s.PodFailurePolicy == nil {
			allowed = append(allowed, batchv1.TerminatingOrFailed)
		}
		if !slices.Contains(allowed, *p) {
			errs = append(errs, field.NotSupported(at.Child("podReplacementPolicy"), *p, allowed))
		}
	}
	return errs
}

func validateFailedIndexes(s *batchv1.JobSpec, at *field.Path) field.ErrorList {
	most, of := s.MaxFailedIndexes, at.Child("maxFailedIndexes")
	if !indexed(s) {
		if most != nil && (s.CompletionMode == nil || *s.CompletionMode == batchv1.NonIndexedCompletion) {
			return field.ErrorList{field.Invalid(of, *most, "requires indexed completion mode")}
		}
		return nil
	}
	var errs field.ErrorList
	if most != nil && s.Completions != nil && *most > *s.Completions {
		errs = append(errs, field.Invalid(of, *most, "must be less than or equal to completions"))
	}
	if most != nil && *most > manyIndexes {
		errs = append(errs, field.Invalid(of, *most, fmt.Sprintf("must be less than or equal to %d", manyIndexes)))
	}
	if s.Completions == nil || *s.Completions <= manyIndexes || s.BackoffLimitPerIndex == nil {
		return errs
	}
	limit := fmt.Sprintf(
		"must be less than or equal to %d when completions are above %d and used with backoff limit per index",
		fewAtOnce, manyIndexes)
	switch {
	case most == nil:
		errs = append(errs,
			field.Required(of, fmt.Sprintf("must be specified when completions is above %d", manyIndexes)))
	case *most > fewAtOnce:
		errs = append(errs, field.Invalid(of, *most, limit))
	}
	if p := s.Parallelism; p != nil && *p > fewAtOnce {
		errs = append(errs, field.Invalid(at.Child("parallelism"), *p, limit))
	}
	return errs
}

func validateFailurePolicy(s *batchv1.JobSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	list := s.PodFailurePolicy.Rules
	if len(list) > maxJobRules {
		errs = append(errs, field.TooMany(at, len(list), maxJobRules))
	}
	names := map[string]bool{}
	for _, list := range [][]corev1.Container{s.Template.Spec.Containers, s.Template.Spec.InitContainers} {
		for _, c := range list {
			names[c.Name] = true
		}
	}
	actions := []batchv1.PodFailurePolicyAction{batchv1.PodFailurePolicyActionCount,
		batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionFailJob,
		batchv1.PodFailurePolicyActionIgnore}
	for i, r := range list {
		at := at.Index(i)
		switch {
		case r.Action == "":
			errs = append(errs, field.Required(at.Child("action"), fmt.Sprintf("valid values: %q", actions)))
		case r.Action == batchv1.PodFailurePolicyActionFailIndex && s.BackoffLimitPerIndex == nil:
			errs = append(errs,
				field.Invalid(at.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set"))
		case !slices.Contains(actions, r.Action):
			errs = append(errs, field.NotSupported(at.Child("action"), r.Action, actions))
		}
		if r.OnExitCodes != nil {
			errs = append(errs, validateExitCodes(r.OnExitCodes, names, at.Child("onExitCodes"))...)
		}
		errs = append(errs, validatePodConditions(r.OnPodConditions, at.Child("onPodConditions"))...)
		switch codes, conditions := r.OnExitCodes != nil, len(r.OnPodConditions) > 0; {
		case codes && conditions:
			errs = append(errs,
				field.Invalid(at, field.OmitValueType{},
					"specifying both OnExitCodes and OnPodConditions is not supported"))
		case !codes && !conditions:
			errs = append(errs,
				field.Invalid(at, field.OmitValueType{},
					"specifying one of OnExitCodes and OnPodConditions is required"))
		}
	}
	return errs
}

func validateExitCodes(r *batchv1.PodFailurePolicyOnExitCodesRequirement, containers map[string]bool,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	operators := []batchv1.PodFailurePolicyOnExitCodesOperator{batchv1.PodFailurePolicyOnExitCodesOpIn,
		batchv1.PodFailurePolicyOnExitCodesOpNotIn}
	switch {
	case r.Operator == "":
		errs = append(errs, field.Required(at.Child("operator"), fmt.Sprintf("valid values: %q", operators)))
	case !slices.Contains(operators, r.Operator):
		errs = append(errs, field.NotSupported(at.Child("operator"), r.Operator, operators))
	}
	if r.ContainerName != nil && !containers[*r.ContainerName] {
		errs = append(errs, field.Invalid(at.Child("containerName"), *r.ContainerName,
			"must be one of the container or initContainer names in the pod template"))
	}
	of := at.Child("values")
	switch {
	case len(r.Values) == 0:
		errs = append(errs, field.Invalid(of, r.Values, "at least one value is required"))
	case len(r.Values) > maxExitCodes:
		errs = append(errs, field.TooMany(of, len(r.Values), maxExitCodes))
	}
	seen := map[int32]bool{}
	for i, v := range r.Values {
		if v == 0 && r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
			errs = append(errs, field.Invalid(of.Index(i), v, "must not be 0 for the In operator"))
		}
		if seen[v] {
			errs = append(errs, field.Duplicate(of.Index(i), v))
		}
		seen[v] = true
	}
	if !slices.IsSorted(r.Values) {
		errs = append(errs, field.Invalid(of, r.Values, "must be ordered"))
	}
	return errs
}

func validatePodConditions(patterns []batchv1.PodFailurePolicyOnPodConditionsPattern, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(patterns) > maxJobConditions {
		errs = append(errs, field.TooMany(at, len(patterns), maxJobConditions))
	}
	statuses := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
	for i, p := range patterns {
		at := at.Index(i)
		for _, m := range validation.IsQualifiedName(string(p.Type)) {
			errs = append(errs, field.Invalid(at.Child("type"), string(p.Type), m))
		}
		switch {
		case p.Status == "":
			errs = append(errs, field.Required(at.Child("status"), fmt.Sprintf("valid values: %q", statuses)))
		case !slices.Contains(statuses, p.Status):
			errs = append(errs, field.NotSupported(at.Child("status"), p.Status, statuses))
		}
	}
	return errs
}

func validateSuccessPolicy(s *batchv1.JobSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	list := s.SuccessPolicy.Rules
	switch {
	case len(list) == 0:
		errs = append(errs,
			field.Required(at, "at least one rules must be specified when the successPolicy is specified"))
	case len(list) > maxJobRules:
		errs = append(errs, field.TooMany(at, len(list), maxJobRules))
	}
	for i, r := range list {
		at := at.Index(i)
		if r.SucceededCount == nil && r.SucceededIndexes == nil {
			errs = append(errs,
				field.Required(at, "at least one of succeededCount or succeededIndexes must be specified"))
		}
		var named int32
		if r.SucceededIndexes != nil {
			of := at.Child("succeededIndexes")
			if len(*r.SucceededIndexes) > maxJobIndexes {
				errs = append(errs, field.TooLong(of, "", maxJobIndexes))
			}
			var err error
			if named, err = countIndexes(*r.SucceededIndexes, *s.Completions); err != nil {
				errs = append(errs,
					field.Invalid(of, *r.SucceededIndexes, fmt.Sprintf("error parsing succeededIndexes: %v", err)))
			}
		}
		if n := r.SucceededCount; n != nil {
			of := at.Child("succeededCount")
			errs = append(errs, rules.NonNegative(n, of)...)
			if *n > *s.Completions {
				errs = append(errs,
					field.Invalid(of, *n,
						fmt.Sprintf("must be less than or equal to %d (the number of specified completions)",
							*s.Completions)))
			}
			if r.SucceededIndexes != nil && *n > named {
				errs = append(errs,
					field.Invalid(of, *n,
						fmt.Sprintf(
							"must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", named)))
			}
		}
	}
	return errs
}

// countIndexes returns the number of indexes in a list like 0,2-4: ascending, below completions.
func countIndexes(list string, completions int32) (int32, error) {
	if list == "" {
		return 0, nil
	}
	var n int32
	last := int32(-1)
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if strings.Contains(to, "-") {
			return 0, fmt.Errorf(
				"the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", part)
		}
		first, err := index(from, completions)
		if err != nil {
			return 0, err
		}
		end := first
		if isRange {
			if end, err = index(to, completions); err != nil {
				return 0, err
			}
		}
		switch {
		case first <= last:
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", last, first)
		case end < first || isRange && end == first:
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", first, end)
		}
		n += end - first + 1
		last = end
	}
	return n, nil
}

func index(text string, completions int32) (int32, error) {
	x, err := strconv.ParseInt(text, 10, 32)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && int32(x) >= completions:
		return 0, fmt.Errorf("too large index: %q", text)
	case err != nil:
		return 0, fmt.Errorf("cannot convert string to integer for index: %q", text)
	}
	return int32(x), nil
}
