package validation

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func cronJob(c *batchv1.CronJob) field.ErrorList {
	const maxName = 52 // what is left of a DNS label when a time is appended
	var errs field.ErrorList
	if len(c.Name) > maxName {
		errs = append(errs, field.Invalid(field.NewPath("metadata").Child("name"), c.Name, fmt.Sprintf("must be no more than %d characters", maxName)))
	}
	return append(errs, cronSpec(&c.Spec, nil)...)
}

func cronJobUpdate(c, old *batchv1.CronJob) field.ErrorList { return cronSpec(&c.Spec, &old.Spec) }

// cronSpec checks all but the name. A time zone that stays is not looked up again, and one in the schedule may stay there.
func cronSpec(s, old *batchv1.CronJobSpec) field.ErrorList {
	var errs field.ErrorList
	if at := specPath.Child("schedule"); s.Schedule == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, schedule(s.Schedule, at)...)
		switch inSchedule, kept := strings.Contains(s.Schedule, "TZ"), old != nil && strings.Contains(old.Schedule, "TZ"); {
		case inSchedule && !kept:
			errs = append(errs, field.Invalid(at, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
		case inSchedule && s.TimeZone != nil:
			errs = append(errs, field.Invalid(at, s.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
		}
	}
	if s.TimeZone != nil && (old == nil || !apiequality.Semantic.DeepEqual(s.TimeZone, old.TimeZone)) {
		errs = append(errs, timeZone(*s.TimeZone, specPath.Child("timeZone"))...)
	}
	errs = append(errs, oneOf(string(s.ConcurrencyPolicy), specPath.Child("concurrencyPolicy"), string(batchv1.AllowConcurrent), string(batchv1.ForbidConcurrent), string(batchv1.ReplaceConcurrent))...)
	errs = append(errs, nonNegative(s.StartingDeadlineSeconds, specPath.Child("startingDeadlineSeconds"))...)
	errs = append(errs, nonNegative(s.SuccessfulJobsHistoryLimit, specPath.Child("successfulJobsHistoryLimit"))...)
	errs = append(errs, nonNegative(s.FailedJobsHistoryLimit, specPath.Child("failedJobsHistoryLimit"))...)
	at := specPath.Child("jobTemplate", "spec")
	errs = append(errs, jobSpec(&s.JobTemplate.Spec, at)...)
	if selector := s.JobTemplate.Spec.Selector; selector != nil {
		errs = append(errs, field.Invalid(at.Child("selector"), selector, "`selector` will be auto-generated"))
	}
	if m := s.JobTemplate.Spec.ManualSelector; m != nil && *m {
		errs = append(errs, field.NotSupported(at.Child("manualSelector"), *m, []string{"nil", "false"}))
	}
	return errs
}

// schedule checks the form of a cron line: five fields or a macro.
func schedule(s string, at *field.Path) field.ErrorList {
	// A zone in front is refused by the caller.
	if zone, rest, ok := strings.Cut(s, " "); ok && (strings.HasPrefix(zone, "TZ=") || strings.HasPrefix(zone, "CRON_TZ=")) {
		s = strings.TrimSpace(rest)
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

var zonePart = regexp.MustCompile(`^[A-Za-z.\-_0-9+]{1,14}$`)

func timeZone(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Invalid(at, name, "timeZone must be nil or non-empty string")}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !zonePart.MatchString(part) {
			return field.ErrorList{field.Invalid(at, name, "unknown time zone "+name)}
		}
	}
	switch {
	case strings.EqualFold(name, "Local"):
		return field.ErrorList{field.Invalid(at, name, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")}
	}
	if _, err := time.LoadLocation(name); err != nil {
		return field.ErrorList{field.Invalid(at, name, err.Error())}
	}
	return nil
}
