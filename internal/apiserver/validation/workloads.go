package validation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var specPath = field.NewPath("spec")

func nonNegative[T int32 | int64](v *T, at *field.Path) field.ErrorList {
	if v == nil {
		return nil
	}
	return apivalidation.ValidateNonnegativeField(int64(*v), at)
}

// selects checks a workload's selector, and that it selects the pods of its own template.
func selects(selector *metav1.LabelSelector, t *corev1.PodTemplateSpec, kind string) field.ErrorList {
	at := specPath.Child("selector")
	if selector == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, at)
	if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(at, selector, fmt.Sprintf("empty selector is invalid for %s", kind)))
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	switch {
	case err != nil:
		errs = append(errs, field.Invalid(at, selector, "invalid label selector"))
	case !s.Empty() && !s.Matches(labels.Set(t.Labels)):
		errs = append(errs, field.Invalid(specPath.Child("template", "metadata", "labels"), t.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// replicated checks the template of a workload that keeps pods running.
func replicated(t *corev1.PodTemplateSpec, kind string) field.ErrorList {
	at := specPath.Child("template")
	errs := podTemplate(t, at)
	if t.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(at.Child("spec", "restartPolicy"), t.Spec.RestartPolicy, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(at.Child("spec", "activeDeadlineSeconds"), fmt.Sprintf("activeDeadlineSeconds in %s is not Supported", kind)))
	}
	return errs
}

// amount checks a number or percentage.
func amount(v *intstr.IntOrString, at *field.Path) field.ErrorList {
	switch {
	case v == nil:
		return nil
	case v.Type == intstr.Int:
		return apivalidation.ValidateNonnegativeField(int64(v.IntVal), at)
	}
	errs := messages(at, v.StrVal, validation.IsValidPercent(v.StrVal))
	if n, err := intstr.GetScaledValueFromIntOrPercent(v, 100, false); err == nil && n > 100 {
		errs = append(errs, field.Invalid(at, v.StrVal, "must not be greater than 100%"))
	}
	return errs
}

func zero(v *intstr.IntOrString) bool {
	if v == nil {
		return true
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, 100, true)
	return err == nil && n == 0
}

func deployment(d *appsv1.Deployment) field.ErrorList {
	s := &d.Spec
	errs := nonNegative(s.Replicas, specPath.Child("replicas"))
	errs = append(errs, selects(s.Selector, &s.Template, "deployment")...)
	errs = append(errs, replicated(&s.Template, "Deployment")...)
	errs = append(errs, nonNegative(&s.MinReadySeconds, specPath.Child("minReadySeconds"))...)
	errs = append(errs, nonNegative(s.RevisionHistoryLimit, specPath.Child("revisionHistoryLimit"))...)
	if p := s.ProgressDeadlineSeconds; p != nil {
		at := specPath.Child("progressDeadlineSeconds")
		errs = append(errs, nonNegative(p, at)...)
		if *p <= s.MinReadySeconds {
			errs = append(errs, field.Invalid(at, *p, "must be greater than minReadySeconds"))
		}
	}
	at := specPath.Child("strategy")
	switch s.Strategy.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.Strategy.RollingUpdate != nil {
			errs = append(errs, field.Forbidden(at.Child("rollingUpdate"), "may not be specified when strategy `type` is 'Recreate'"))
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		r, at := s.Strategy.RollingUpdate, at.Child("rollingUpdate")
		if r == nil {
			return append(errs, field.Required(at, "this should be defaulted and never be nil"))
		}
		errs = append(errs, amount(r.MaxUnavailable, at.Child("maxUnavailable"))...)
		if r.MaxSurge != nil && r.MaxSurge.Type == intstr.String {
			errs = append(errs, messages(at.Child("maxSurge"), r.MaxSurge.StrVal, validation.IsValidPercent(r.MaxSurge.StrVal))...)
		} else {
			errs = append(errs, amount(r.MaxSurge, at.Child("maxSurge"))...)
		}
		if zero(r.MaxUnavailable) && zero(r.MaxSurge) {
			errs = append(errs, field.Invalid(at.Child("maxUnavailable"), r.MaxUnavailable, "may not be 0 when `maxSurge` is 0"))
		}
	default:
		errs = append(errs, field.NotSupported(at.Child("type"), s.Strategy.Type, []appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType}))
	}
	return errs
}

func deploymentUpdate(d, old *appsv1.Deployment) field.ErrorList {
	return append(deployment(d), immutableSelector(d.Spec.Selector, old.Spec.Selector, specPath.Child("selector"))...)
}

func replicaSet(r *appsv1.ReplicaSet) field.ErrorList {
	errs := nonNegative(r.Spec.Replicas, specPath.Child("replicas"))
	errs = append(errs, nonNegative(&r.Spec.MinReadySeconds, specPath.Child("minReadySeconds"))...)
	errs = append(errs, selects(r.Spec.Selector, &r.Spec.Template, "ReplicaSet")...)
	return append(errs, replicated(&r.Spec.Template, "ReplicaSet")...)
}

func replicaSetUpdate(r, old *appsv1.ReplicaSet) field.ErrorList {
	return append(replicaSet(r), immutableSelector(r.Spec.Selector, old.Spec.Selector, specPath.Child("selector"))...)
}

func replicationController(r *corev1.ReplicationController) field.ErrorList {
	errs := nonNegative(r.Spec.Replicas, specPath.Child("replicas"))
	errs = append(errs, nonNegative(&r.Spec.MinReadySeconds, specPath.Child("minReadySeconds"))...)
	if len(r.Spec.Selector) == 0 {
		errs = append(errs, field.Required(specPath.Child("selector"), ""))
	}
	if r.Spec.Template == nil {
		return append(errs, field.Required(specPath.Child("template"), ""))
	}
	if s := labels.SelectorFromSet(r.Spec.Selector); !s.Empty() && !s.Matches(labels.Set(r.Spec.Template.Labels)) {
		errs = append(errs, field.Invalid(specPath.Child("template", "metadata", "labels"), r.Spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	return append(errs, replicated(r.Spec.Template, "ReplicationController")...)
}

func statefulSet(s *appsv1.StatefulSet) field.ErrorList {
	errs := oneOf(string(s.Spec.PodManagementPolicy), specPath.Child("podManagementPolicy"), string(appsv1.OrderedReadyPodManagement), string(appsv1.ParallelPodManagement))
	at := specPath.Child("updateStrategy")
	switch s.Spec.UpdateStrategy.Type {
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.Spec.UpdateStrategy.RollingUpdate != nil {
			errs = append(errs, field.Invalid(at.Child("rollingUpdate"), s.Spec.UpdateStrategy.RollingUpdate, fmt.Sprintf("only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType)))
		}
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if r := s.Spec.UpdateStrategy.RollingUpdate; r != nil {
			errs = append(errs, nonNegative(r.Partition, at.Child("rollingUpdate", "partition"))...)
			errs = append(errs, amount(r.MaxUnavailable, at.Child("rollingUpdate", "maxUnavailable"))...)
			if r.MaxUnavailable != nil && zero(r.MaxUnavailable) {
				errs = append(errs, field.Invalid(at.Child("rollingUpdate", "maxUnavailable"), *r.MaxUnavailable, "cannot be 0"))
			}
		}
	case "":
		errs = append(errs, field.Required(at, ""))
	default:
		errs = append(errs, field.Invalid(at, s.Spec.UpdateStrategy, fmt.Sprintf("must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType, appsv1.OnDeleteStatefulSetStrategyType)))
	}
	errs = append(errs, nonNegative(s.Spec.Replicas, specPath.Child("replicas"))...)
	errs = append(errs, nonNegative(&s.Spec.MinReadySeconds, specPath.Child("minReadySeconds"))...)
	if s.Spec.Ordinals != nil {
		errs = append(errs, nonNegative(&s.Spec.Ordinals.Start, specPath.Child("ordinals", "start"))...)
	}
	if s.Spec.ServiceName != "" {
		for _, m := range validation.IsDNS1123Label(s.Spec.ServiceName) {
			errs = append(errs, field.Invalid(specPath.Child("serviceName"), s.Spec.ServiceName, m))
		}
	}
	if p := s.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		at := specPath.Child("persistentVolumeClaimRetentionPolicy")
		for _, x := range []struct {
			name   string
			policy appsv1.PersistentVolumeClaimRetentionPolicyType
		}{{"whenDeleted", p.WhenDeleted}, {"whenScaled", p.WhenScaled}} {
			if x.policy != appsv1.RetainPersistentVolumeClaimRetentionPolicyType && x.policy != appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
				errs = append(errs, field.NotSupported(at.Child(x.name), x.policy, []appsv1.PersistentVolumeClaimRetentionPolicyType{
					appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType}))
			}
		}
	}
	for i := range s.Spec.VolumeClaimTemplates {
		errs = append(errs, claimSpec(&s.Spec.VolumeClaimTemplates[i].Spec, specPath.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
	}
	errs = append(errs, selects(s.Spec.Selector, &s.Spec.Template, "statefulset")...)
	return append(errs, replicated(asControllerMakes(s), "StatefulSet")...)
}

// asControllerMakes returns a template with what the controller sets in each pod:
// a volume for each claim, and its own host name.
func asControllerMakes(s *appsv1.StatefulSet) *corev1.PodTemplateSpec {
	t := s.Spec.Template.DeepCopy()
	t.Spec.Hostname, t.Spec.Subdomain = "", ""
	var volumes []corev1.Volume
	claimed := map[string]bool{}
	for _, c := range s.Spec.VolumeClaimTemplates {
		if !claimed[c.Name] {
			volumes = append(volumes, corev1.Volume{Name: c.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name}}})
		}
		claimed[c.Name] = true
	}
	for _, v := range t.Spec.Volumes {
		if !claimed[v.Name] {
			volumes = append(volumes, v)
		}
	}
	t.Spec.Volumes = volumes
	return t
}

func statefulSetUpdate(s, old *appsv1.StatefulSet) field.ErrorList {
	errs := statefulSet(s)
	rest := s.Spec.DeepCopy()
	rest.Replicas, rest.Template, rest.UpdateStrategy = old.Spec.Replicas, old.Spec.Template, old.Spec.UpdateStrategy
	rest.MinReadySeconds, rest.Ordinals, rest.RevisionHistoryLimit = old.Spec.MinReadySeconds, old.Spec.Ordinals, old.Spec.RevisionHistoryLimit
	rest.PersistentVolumeClaimRetentionPolicy = old.Spec.PersistentVolumeClaimRetentionPolicy
	if !apiequality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs, field.Forbidden(specPath, "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"))
	}
	return errs
}

func daemonSet(d *appsv1.DaemonSet) field.ErrorList {
	errs := selects(d.Spec.Selector, &d.Spec.Template, "daemonset")
	errs = append(errs, replicated(&d.Spec.Template, "DaemonSet")...)
	errs = append(errs, nonNegative(&d.Spec.MinReadySeconds, specPath.Child("minReadySeconds"))...)
	errs = append(errs, nonNegative(d.Spec.RevisionHistoryLimit, specPath.Child("revisionHistoryLimit"))...)
	at := specPath.Child("updateStrategy")
	switch d.Spec.UpdateStrategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		r, at := d.Spec.UpdateStrategy.RollingUpdate, at.Child("rollingUpdate")
		if r == nil {
			return append(errs, field.Required(at, ""))
		}
		errs = append(errs, amount(r.MaxUnavailable, at.Child("maxUnavailable"))...)
		errs = append(errs, amount(r.MaxSurge, at.Child("maxSurge"))...)
		switch none, surge := zero(r.MaxUnavailable), zero(r.MaxSurge); {
		case none && surge:
			errs = append(errs, field.Required(at.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
		case !none && !surge:
			errs = append(errs, field.Invalid(at.Child("maxSurge"), r.MaxSurge, "may not be set when maxUnavailable is non-zero"))
		}
	default:
		errs = append(errs, field.NotSupported(at.Child("type"), d.Spec.UpdateStrategy.Type, []appsv1.DaemonSetUpdateStrategyType{appsv1.OnDeleteDaemonSetStrategyType, appsv1.RollingUpdateDaemonSetStrategyType}))
	}
	return errs
}

func daemonSetUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	return append(daemonSet(d), immutableSelector(d.Spec.Selector, old.Spec.Selector, specPath.Child("selector"))...)
}

func job(j *batchv1.Job) field.ErrorList {
	errs := jobSpec(&j.Spec, specPath)
	if j.Spec.Selector == nil {
		return append(errs, field.Required(specPath.Child("selector"), ""))
	}
	s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	switch {
	case err != nil:
		errs = append(errs, field.Invalid(specPath.Child("selector"), j.Spec.Selector, "invalid label selector"))
	case !s.Matches(labels.Set(j.Spec.Template.Labels)):
		errs = append(errs, field.Invalid(specPath.Child("template", "metadata", "labels"), j.Spec.Template.Labels, "`selector` does not match template `labels`"))
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
	indexed := s.CompletionMode != nil && *s.CompletionMode == batchv1.IndexedCompletion
	if s.CompletionMode != nil {
		errs = append(errs, oneOf(string(*s.CompletionMode), at.Child("completionMode"), string(batchv1.IndexedCompletion), string(batchv1.NonIndexedCompletion))...)
	}
	switch {
	case indexed && s.Completions == nil:
		errs = append(errs, field.Required(at.Child("completions"), fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion)))
	case indexed && s.Parallelism != nil && *s.Parallelism > maxIndexedParallelism:
		errs = append(errs, field.Invalid(at.Child("parallelism"), *s.Parallelism, fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexedParallelism, batchv1.IndexedCompletion)))
	case !indexed && s.BackoffLimitPerIndex != nil:
		errs = append(errs, field.Invalid(at.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, "requires indexed completion mode"))
	}
	errs = append(errs, jobPolicies(s, at)...)
	errs = append(errs, podTemplate(&s.Template, at.Child("template"))...)
	if p := s.Template.Spec.RestartPolicy; p != corev1.RestartPolicyOnFailure && p != corev1.RestartPolicyNever {
		errs = append(errs, field.Required(at.Child("template", "spec", "restartPolicy"), `valid values: "OnFailure", "Never"`))
	}
	if s.PodFailurePolicy != nil && s.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
		errs = append(errs, field.Invalid(at.Child("template", "spec", "restartPolicy"), s.Template.Spec.RestartPolicy, fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever)))
	}
	return errs
}

func jobUpdate(j, old *batchv1.Job) field.ErrorList {
	errs := job(j)
	elastic := j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion && j.Spec.Completions != nil && j.Spec.Parallelism != nil && *j.Spec.Completions == *j.Spec.Parallelism
	if !elastic {
		errs = append(errs, immutableSelector(j.Spec.Completions, old.Spec.Completions, specPath.Child("completions"))...)
	}
	errs = append(errs, immutableSelector(j.Spec.Selector, old.Spec.Selector, specPath.Child("selector"))...)
	errs = append(errs, immutableSelector(j.Spec.CompletionMode, old.Spec.CompletionMode, specPath.Child("completionMode"))...)
	errs = append(errs, immutableSelector(j.Spec.PodFailurePolicy, old.Spec.PodFailurePolicy, specPath.Child("podFailurePolicy"))...)
	errs = append(errs, immutableSelector(j.Spec.BackoffLimitPerIndex, old.Spec.BackoffLimitPerIndex, specPath.Child("backoffLimitPerIndex"))...)

	is, was := j.Spec.Template.DeepCopy(), &old.Spec.Template
	if old.Spec.Suspend != nil && *old.Spec.Suspend && old.Status.StartTime == nil {
		// A job that never ran may still be directed elsewhere.
		is.Spec.NodeSelector, is.Spec.Affinity, is.Spec.Tolerations, is.Spec.SchedulingGates = was.Spec.NodeSelector, was.Spec.Affinity, was.Spec.Tolerations, was.Spec.SchedulingGates
		is.Labels, is.Annotations = was.Labels, was.Annotations
	}
	return append(errs, immutableSelector(is, was, specPath.Child("template"))...)
}

func cronJob(c *batchv1.CronJob) field.ErrorList {
	const maxName = 52 // what is left of a DNS label when a time is appended
	var errs field.ErrorList
	if len(c.Name) > maxName {
		errs = append(errs, field.Invalid(field.NewPath("metadata").Child("name"), c.Name, fmt.Sprintf("must be no more than %d characters", maxName)))
	}
	if c.Spec.Schedule == "" {
		errs = append(errs, field.Required(specPath.Child("schedule"), ""))
	} else {
		errs = append(errs, schedule(c.Spec.Schedule, specPath.Child("schedule"))...)
	}
	if c.Spec.TimeZone != nil {
		errs = append(errs, timeZone(*c.Spec.TimeZone, specPath.Child("timeZone"))...)
	}
	errs = append(errs, oneOf(string(c.Spec.ConcurrencyPolicy), specPath.Child("concurrencyPolicy"), string(batchv1.AllowConcurrent), string(batchv1.ForbidConcurrent), string(batchv1.ReplaceConcurrent))...)
	errs = append(errs, nonNegative(c.Spec.StartingDeadlineSeconds, specPath.Child("startingDeadlineSeconds"))...)
	errs = append(errs, nonNegative(c.Spec.SuccessfulJobsHistoryLimit, specPath.Child("successfulJobsHistoryLimit"))...)
	errs = append(errs, nonNegative(c.Spec.FailedJobsHistoryLimit, specPath.Child("failedJobsHistoryLimit"))...)
	return append(errs, jobSpec(&c.Spec.JobTemplate.Spec, specPath.Child("jobTemplate", "spec"))...)
}

// schedule checks the form of a cron line: five fields or a macro.
func schedule(s string, at *field.Path) field.ErrorList {
	if strings.Contains(s, "TZ=") {
		return field.ErrorList{field.Invalid(at, s, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")}
	}
	macros := []string{"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}
	if slices.Contains(macros, s) {
		return nil
	}
	if every, ok := strings.CutPrefix(s, "@every "); ok {
		if _, err := time.ParseDuration(every); err != nil {
			return field.ErrorList{field.Invalid(at, s, fmt.Sprintf("failed to parse duration %s: %v", s, err))}
		}
		return nil
	}
	if n := len(strings.Fields(s)); n != 5 {
		return field.ErrorList{field.Invalid(at, s, fmt.Sprintf("expected exactly 5 fields, found %d: %v", n, strings.Fields(s)))}
	}
	return nil
}

func timeZone(name string, at *field.Path) field.ErrorList {
	switch {
	case name == "":
		return field.ErrorList{field.Invalid(at, name, "timeZone must be nil or non-empty string")}
	case strings.EqualFold(name, "Local"):
		return field.ErrorList{field.Invalid(at, name, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")}
	}
	if _, err := time.LoadLocation(name); err != nil {
		return field.ErrorList{field.Invalid(at, name, err.Error())}
	}
	return nil
}

func disruptionBudget(b *policyv1.PodDisruptionBudget) field.ErrorList {
	var errs field.ErrorList
	if b.Spec.MinAvailable != nil && b.Spec.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(specPath, b.Spec, "minAvailable and maxUnavailable cannot be both set"))
	}
	errs = append(errs, amount(b.Spec.MinAvailable, specPath.Child("minAvailable"))...)
	errs = append(errs, amount(b.Spec.MaxUnavailable, specPath.Child("maxUnavailable"))...)
	errs = append(errs, metav1validation.ValidateLabelSelector(b.Spec.Selector, metav1validation.LabelSelectorValidationOptions{}, specPath.Child("selector"))...)
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil {
		errs = append(errs, oneOf(string(*p), specPath.Child("unhealthyPodEvictionPolicy"), string(policyv1.AlwaysAllow), string(policyv1.IfHealthyBudget))...)
	}
	return errs
}
