package batch

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/pods"
	"carob/internal/kinds/rules"
)

func validateCronJob(c *batchv1.CronJob) field.ErrorList {
	const maxName = 52 // the rest of a DNS label after a time is appended
	var errs field.ErrorList
	if len(c.Name) > maxName {
		errs = append(errs, field.Invalid(field.NewPath("metadata").Child("name"), c.Name,
			fmt.Sprintf("must be no more than %d characters", maxName)))
	}
	return append(errs, validateCronSpec(&c.Spec, nil)...)
}

func validateCronJobUpdate(c, old *batchv1.CronJob) field.ErrorList {
	return validateCronSpec(&c.Spec, &old.Spec)
}

// validateCronSpec validates everything but the name. An unchanged time zone is not looked up
// again, and an existing one in the schedule may stay.
func validateCronSpec(s, old *batchv1.CronJobSpec) field.ErrorList {
	var errs field.ErrorList
	if at := rules.SpecPath.Child("schedule"); s.Schedule == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, validateSchedule(s.Schedule, at)...)
		switch inSchedule, kept := strings.Contains(s.Schedule, "TZ"),
			old != nil && strings.Contains(old.Schedule, "TZ"); {
		case inSchedule && !kept:
			errs = append(errs,
				field.Invalid(at, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
		case inSchedule && s.TimeZone != nil:
			errs = append(errs,
				field.Invalid(at, s.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
		}
	}
	if s.TimeZone != nil && (old == nil || !apiequality.Semantic.DeepEqual(s.TimeZone, old.TimeZone)) {
		errs = append(errs, validateTimeZone(*s.TimeZone, rules.SpecPath.Child("timeZone"))...)
	}
	errs = append(errs, rules.OneOf(string(s.ConcurrencyPolicy), rules.SpecPath.Child("concurrencyPolicy"),
		string(batchv1.AllowConcurrent), string(batchv1.ForbidConcurrent), string(batchv1.ReplaceConcurrent))...)
	errs = append(errs, rules.NonNegative(s.StartingDeadlineSeconds,
		rules.SpecPath.Child("startingDeadlineSeconds"))...)
	errs = append(errs, rules.NonNegative(s.SuccessfulJobsHistoryLimit,
		rules.SpecPath.Child("successfulJobsHistoryLimit"))...)
	errs = append(errs, rules.NonNegative(s.FailedJobsHistoryLimit, rules.SpecPath.Child("failedJobsHistoryLimit"))...)
	at := rules.SpecPath.Child("jobTemplate", "spec")
	errs = append(errs, validateJobSpec(&s.JobTemplate.Spec, at)...)
	if selector := s.JobTemplate.Spec.Selector; selector != nil {
		errs = append(errs, field.Invalid(at.Child("selector"), selector, "`selector` will be auto-generated"))
	}
	if m := s.JobTemplate.Spec.ManualSelector; m != nil && *m {
		errs = append(errs, field.NotSupported(at.Child("manualSelector"), *m, []string{"nil", "false"}))
	}
	return errs
}

// validateSchedule validates a cron schedule: five fields, a macro, or an interval.
func validateSchedule(s string, at *field.Path) (errs field.ErrorList) {
	// The parser panics on some texts ("TZ=0").
	defer func() {
		if r := recover(); r != nil {
			errs = field.ErrorList{field.Invalid(at, s, fmt.Sprintf("invalid schedule format: %v", r))}
		}
	}()
	if _, err := cron.ParseStandard(s); err != nil {
		return field.ErrorList{field.Invalid(at, s, err.Error())}
	}
	return nil
}

var zonePart = regexp.MustCompile(`^[A-Za-z.\-_0-9+]{1,14}$`)

func validateTimeZone(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Invalid(at, name, "timeZone must be nil or non-empty string")}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !zonePart.MatchString(part) {
			return field.ErrorList{field.Invalid(at, name, "unknown time zone "+name)}
		}
	}
	var errs field.ErrorList
	if strings.EqualFold(name, "Local") {
		errs = append(errs,
			field.Invalid(at, name,
				"timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"))
	}
	if _, err := time.LoadLocation(name); err != nil {
		errs = append(errs, field.Invalid(at, name, err.Error()))
	}
	return errs
}

func cronJobWarnings(_ context.Context, obj, old runtime.Object) []string {
	c, ok := obj.(*batchv1.CronJob)
	if !ok {
		return nil
	}
	before, isUpdate := old.(*batchv1.CronJob)
	var out []string
	if at := rules.SpecPath.Child("jobTemplate", "spec"); !isUpdate || before.Generation != c.Generation {
		out = append(jobSpecWarnings(&c.Spec.JobTemplate.Spec, at),
			pods.TemplateWarnings(&c.Spec.JobTemplate.Spec.Template, at.Child("template"))...)
	}
	if isUpdate && strings.Contains(c.Spec.Schedule, "TZ") {
		out = append(out,
			"cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
	}
	return out
}
