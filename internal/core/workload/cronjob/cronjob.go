// Package cronjob decides what happens to a CronJob: which Job it starts now, which old Jobs are
// deleted, its status, and when to decide again (W6). The cronjob controller drives it. It is a
// function of its arguments.
//
// Like a Job's plan, it returns the actions that are possible now; the driver does them, applies
// the effects to its input, and calls again until nothing is left.
//
// Contract: docs/spec/workloads.md.
package cronjob

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/seconds"
	"carob/internal/core/workload"
)

// Schedule returns when the CronJob is due next, after a time; zero for never.
type Schedule interface{ Next(time.Time) time.Time }

// Input holds everything that Plan uses; all of it is read only.
type Input struct {
	CronJob *batchv1.CronJob
	Jobs    []*batchv1.Job // those that the CronJob controls; not older than its status
	Now     time.Time

	Schedule    Schedule
	Zone        *time.Location // of spec.timeZone; nil: unset
	ZoneErr     error          // why spec.timeZone is unknown
	ScheduleErr error          // why the schedule cannot be parsed

	// Results of the driver in this turn.
	Deleted map[types.UID]bool // Jobs that it deleted
	Keep    bool               // an old Job could not be deleted: clean up the history later
	Foreign map[string]bool    // names of Jobs with other owners
}

// Output holds the actions, in the order of the fields; afterwards decide again, with the effects
// in the input.
type Output struct {
	Status *batchv1.CronJobStatus // nil: it is as stored
	// Events are about the CronJob, recorded when the status is stored.
	Events []Event
	// History lists finished Jobs above the limits. A Job that can't be deleted stays (Keep).
	History []*batchv1.Job
	// Replace lists Jobs that are replaced by the next; one that can't be deleted ends this turn
	// (W6.17).
	Replace []corev1.ObjectReference
	Create  *batchv1.Job
	// Look is when to decide again without a change; zero for never.
	Look time.Duration
}

// Event is an event to record about the CronJob.
type Event struct{ Type, Reason, Message string }

// Done reports whether there is nothing left to do.
func (o *Output) Done() bool {
	return o.Status == nil && o.Create == nil && len(o.History)+len(o.Replace) == 0
}

// slack is added to each time, for clocks that differ a little (W6.10).
const slack = 100 * time.Millisecond

// Plan decides about one CronJob.
func Plan(in Input) Output {
	p := &plan{in: in, cj: in.CronJob, status: *in.CronJob.Status.DeepCopy()}
	p.follow()
	if !equality.Semantic.DeepEqual(p.status, in.CronJob.Status) {
		p.out.Status = &p.status
		return p.out
	}
	if !in.Keep {
		if old := p.old(); len(old) > 0 {
			if p.note(old) {
				p.out.Status = &p.status
			} else {
				p.out.History = old
			}
			return p.out
		}
	}
	if p.cj.DeletionTimestamp == nil { // W6.27
		p.schedule()
	}
	if !equality.Semantic.DeepEqual(p.status, in.CronJob.Status) {
		p.out.Status = &p.status
	}
	if p.out.Done() {
		p.warn()
	}
	return p.out
}

// Next returns the time from now until the CronJob is due, with the slack.
func Next(cj *batchv1.CronJob, schedule Schedule, now time.Time) time.Duration {
	last, found, missed, err := recent(earliest(cj), now, schedule)
	switch {
	case err != nil, !found && missed:
		last = now
	case !found:
		last = earliest(cj)
	}
	next := schedule.Next(last)
	if next.IsZero() {
		return 0
	}
	return max(next.Add(slack).Sub(now), time.Millisecond)
}

// Name returns the name of the Job of a time: one for each minute (W6.22).
func Name(cj *batchv1.CronJob, at time.Time) string {
	return fmt.Sprintf("%s-%d", cj.Name, at.Unix()/60)
}

type plan struct {
	in     Input
	cj     *batchv1.CronJob
	status batchv1.CronJobStatus
	out    Output
}

func (p *plan) event(kind, reason, format string, args ...any) {
	p.out.Events = append(p.out.Events, Event{kind, reason, fmt.Sprintf(format, args...)})
}

// follow brings the list of active Jobs and the last success up to date (W6.24).
func (p *plan) follow() {
	jobs := map[types.UID]*batchv1.Job{}
	for _, j := range p.in.Jobs {
		jobs[j.UID] = j
		if at := j.Status.CompletionTime; workload.FinishedAs(j) == batchv1.JobComplete && at != nil &&
			(p.status.LastSuccessfulTime == nil || at.After(p.status.LastSuccessfulTime.Time)) {
			p.status.LastSuccessfulTime = at
		}
	}
	p.status.Active = slices.DeleteFunc(p.status.Active, func(ref corev1.ObjectReference) bool {
		j := jobs[ref.UID]
		switch {
		case p.in.Deleted[ref.UID]:
			return true
		case j == nil:
			p.event(corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
			return true
		case workload.FinishedAs(j) != "":
			p.event(corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name,
				workload.FinishedAs(j))
			return true
		}
		return false
	})
	if len(p.status.Active) == 0 {
		p.status.Active = nil
	}
	for _, j := range p.in.Jobs {
		if at, ok := p.ours(j); ok && workload.FinishedAs(j) == "" && !p.in.Deleted[j.UID] && !p.active(j.UID) {
			p.take(j, at)
		}
	}
}

// ours returns the time for which this controller created a Job. A Job that no status lists was
// created right before a crash, or its response was lost: it counts like any other, so that Forbid
// and Replace are respected.
func (p *plan) ours(j *batchv1.Job) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, j.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	return at, err == nil && j.Name == Name(p.cj, at) && j.DeletionTimestamp == nil
}

func (p *plan) active(uid types.UID) bool {
	return slices.ContainsFunc(p.status.Active, func(r corev1.ObjectReference) bool { return r.UID == uid })
}

// take records a Job that was started for a time.
func (p *plan) take(j *batchv1.Job, at time.Time) {
	p.status.Active = append(p.status.Active, corev1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Namespace: j.Namespace, Name: j.Name, UID: j.UID,
		ResourceVersion: j.ResourceVersion,
	})
	if last := p.status.LastScheduleTime; last == nil || at.After(last.Time) {
		p.status.LastScheduleTime = &metav1.Time{Time: at}
	}
}

// note records the times of Jobs that are to be deleted, so that none is created for them again:
// one that ended before any status listed it is recorded nowhere else (W6.15). It reports whether
// anything was new.
func (p *plan) note(old []*batchv1.Job) bool {
	noted := false
	for _, j := range old {
		if at, ok := p.ours(j); ok && (p.status.LastScheduleTime == nil || at.After(p.status.LastScheduleTime.Time)) {
			p.status.LastScheduleTime, noted = &metav1.Time{Time: at}, true
		}
	}
	return noted
}

// warn reports Jobs that run although this controller did not start them (W6.25), and a time
// zone in the schedule (W6.3): once a turn, when nothing else is left to do.
func (p *plan) warn() {
	if spec := &p.cj.Spec; p.in.ZoneErr == nil && p.cj.DeletionTimestamp == nil &&
		(spec.Suspend == nil || !*spec.Suspend) && strings.Contains(spec.Schedule, "TZ") {
		p.event(corev1.EventTypeWarning, "UnsupportedSchedule",
			"CRON_TZ or TZ used in schedule %q is not officially supported, see %s for more details",
			spec.Schedule, "https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/")
	}
	for _, j := range p.in.Jobs {
		if workload.FinishedAs(j) == "" && !p.in.Deleted[j.UID] && !p.active(j.UID) {
			p.event(corev1.EventTypeWarning, "UnexpectedJob",
				"Saw a job that the controller did not create or forgot: %s", j.Name)
		}
	}
}

// old returns the finished Jobs above the limits, oldest first (W6.26).
func (p *plan) old() []*batchv1.Job {
	var out []*batchv1.Job
	above := func(limit *int32, kind batchv1.JobConditionType) {
		if limit == nil {
			return
		}
		var jobs []*batchv1.Job
		for _, j := range p.in.Jobs {
			if workload.FinishedAs(j) == kind && !p.in.Deleted[j.UID] {
				jobs = append(jobs, j)
			}
		}
		slices.SortFunc(jobs, byStart)
		out = append(out, jobs[:max(0, len(jobs)-int(*limit))]...)
	}
	above(p.cj.Spec.SuccessfulJobsHistoryLimit, batchv1.JobComplete)
	above(p.cj.Spec.FailedJobsHistoryLimit, batchv1.JobFailed)
	// Jobs that are being deleted count, but need no second request.
	out = slices.DeleteFunc(out, func(j *batchv1.Job) bool { return j.DeletionTimestamp != nil })
	slices.SortFunc(out, byStart)
	return out
}

// byStart sorts by start time; those without one come last.
func byStart(a, b *batchv1.Job) int {
	s, t := a.Status.StartTime, b.Status.StartTime
	switch {
	case s == nil && t != nil:
		return 1
	case s != nil && t == nil:
		return -1
	case s != nil && !s.Equal(t):
		return s.Compare(t.Time)
	}
	return cmp.Compare(a.Name, b.Name)
}

// schedule starts the Job that is due, if one is.
func (p *plan) schedule() {
	spec := &p.cj.Spec
	if p.in.ZoneErr != nil {
		zone := ""
		if spec.TimeZone != nil {
			zone = *spec.TimeZone
		}
		p.event(corev1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", zone, p.in.ZoneErr)
		return
	}
	if spec.Suspend != nil && *spec.Suspend { // W6.18
		return
	}
	if p.in.ScheduleErr != nil {
		p.event(corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", spec.Schedule,
			p.in.ScheduleErr)
		return
	}
	from := earliest(p.cj)
	if d := spec.StartingDeadlineSeconds; d != nil {
		if limit := p.in.Now.Add(-seconds.Duration(*d)); limit.After(from) {
			from = limit
		}
	}
	due, found, _, err := recent(from, p.in.Now, p.in.Schedule)
	if err != nil {
		p.event(corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : %s", spec.Schedule, err)
		return
	}
	p.out.Look = Next(p.cj, p.in.Schedule, p.in.Now)
	if !found {
		return
	}
	p.start(due, from)
}

// start starts the Job of a time, unless a rule prevents it.
func (p *plan) start(due, from time.Time) {
	spec := &p.cj.Spec
	name := Name(p.cj, due)
	switch {
	case spec.StartingDeadlineSeconds != nil &&
		due.Add(seconds.Duration(*spec.StartingDeadlineSeconds)).Before(p.in.Now):
		p.event(corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s",
			due.UTC().Format(time.RFC1123Z))
		return
	case p.status.LastScheduleTime != nil && p.status.LastScheduleTime.Time.Equal(due),
		slices.ContainsFunc(p.status.Active,
			func(r corev1.ObjectReference) bool { return r.Name == name && r.Namespace == p.cj.Namespace }),
		p.in.Foreign[name]:
		return // W6.15, W6.23
	}
	if many(from, p.in.Now, p.in.Schedule) {
		p.event(corev1.EventTypeWarning, "TooManyMissedTimes",
			"too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	// A Job of this name was created for this time, and has already finished.
	i := slices.IndexFunc(p.in.Jobs, func(j *batchv1.Job) bool { return j.Name == name && !p.in.Deleted[j.UID] })
	active := p.status.Active
	switch {
	case spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(active) > 0: // W6.16
		p.event(corev1.EventTypeNormal, "JobAlreadyActive",
			"Not starting job because prior execution is running and concurrency policy is Forbid")
	case spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent && len(active) > 0: // W6.17
		p.out.Replace, p.out.Events = active, nil
	case i >= 0:
		p.take(p.in.Jobs[i], due)
		p.out.Events = nil // they were recorded with the creation
	default:
		p.out.Create = p.job(name, due)
	}
}

// job makes the Job of a time (W6.22).
func (p *plan) job(name string, due time.Time) *batchv1.Job {
	t := p.cj.Spec.JobTemplate.DeepCopy()
	zone := p.in.Zone
	if zone == nil {
		zone = time.UTC // as for an empty zone name
	}
	annotations := map[string]string{}
	maps.Copy(annotations, t.Annotations)
	annotations[batchv1.CronJobScheduledTimestampAnnotation] = due.In(zone).Format(time.RFC3339)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.cj.Namespace, Name: name, Labels: t.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p.cj,
				batchv1.SchemeGroupVersion.WithKind("CronJob"))},
		},
		Spec: t.Spec,
	}
}

// earliest is the time after which runs are due (W6.11).
func earliest(cj *batchv1.CronJob) time.Time {
	if cj.Status.LastScheduleTime != nil {
		return cj.Status.LastScheduleTime.Time
	}
	return cj.CreationTimestamp.Time
}

// oldest is how old a time of the last run can be. A user may store any time in the status, and the search below needs
// differences of times, which are at most 292 years.
const oldest = 100 * 365 * 24 * time.Hour

// recent returns the latest time in (from, now] in the schedule (W6.12). missed: there were times,
// although none was found.
func recent(from, now time.Time, s Schedule) (at time.Time, found, missed bool, err error) {
	if now.Sub(from) > oldest {
		from = now.Add(-oldest)
	}
	first := s.Next(from)
	second := s.Next(first)
	switch {
	case first.IsZero() && second.IsZero(), second.Sub(first).Round(time.Second) < time.Second && !now.Before(second):
		// W6.20
		return time.Time{}, false, false, errors.New("time difference between two schedules is less than 1 second")
	case now.Before(first):
		return time.Time{}, false, false, nil
	case now.Before(second):
		return first, true, false, nil
	}
	// Search from shortly before the end, so that years of missed runs cost little; from further
	// back if later steps are longer than the first one (a schedule of working hours, on a Sunday).
	// Go back by multiples of the first step, because @every counts from its start.
	step := second.Sub(first).Round(time.Second)
	for back := time.Duration(1); !found; back *= 2 {
		steps := max(now.Sub(first)/step-back, -1)
		from := first.Add(steps * step)
		if steps < 0 {
			from = from.Add(step - time.Nanosecond)
			at, found = first, true
		}
		for t := s.Next(from); !t.IsZero() && !t.After(now); t = s.Next(t) {
			at, found = t, true
		}
	}
	return at, true, true, nil
}

// many reports whether more than a hundred runs were missed (W6.13).
func many(from, now time.Time, s Schedule) bool {
	first := s.Next(from)
	step := s.Next(first).Sub(first).Round(time.Second)
	return step >= time.Second && now.Sub(first)/step+1 > 100
}
