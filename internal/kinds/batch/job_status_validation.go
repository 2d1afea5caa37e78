package batch

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func jobIs(s *batchv1.JobStatus, t batchv1.JobConditionType) bool {
	return slices.ContainsFunc(s.Conditions,
		func(c batchv1.JobCondition) bool { return c.Type == t && c.Status == corev1.ConditionTrue })
}

// jobChange is a change of a job's status, with values that several checks need.
type jobChange struct {
	spec    *batchv1.JobSpec
	is, was *batchv1.JobStatus
	errs    field.ErrorList
}

func validateJobStatusUpdate(j, old *batchv1.Job) field.ErrorList {
	c := &jobChange{spec: &j.Spec, is: &j.Status, was: &old.Status}
	s := c.is
	c.errs = rules.Counts(rules.Count("active", int64(s.Active)), rules.Count("succeeded", int64(s.Succeeded)),
		rules.Count("failed", int64(s.Failed)), rules.Optional("ready", s.Ready),
		rules.Optional("terminating", s.Terminating))
	c.uncounted()
	c.outcome()
	c.times()
	c.pods()
	c.indexes()
	return c.errs
}

func (c *jobChange) refuse(name string, value any, message string) {
	c.errs = append(c.errs, field.Invalid(rules.StatusPath.Child(name), value, message))
}

func (c *jobChange) complete() bool { return jobIs(c.is, batchv1.JobComplete) }

func (c *jobChange) finished() bool { return c.complete() || jobIs(c.is, batchv1.JobFailed) }

// turned reports whether one of the conditions has become true or stopped being true.
func (c *jobChange) turned(types ...batchv1.JobConditionType) bool {
	return slices.ContainsFunc(types,
		func(t batchv1.JobConditionType) bool { return jobIs(c.is, t) != jobIs(c.was, t) })
}

func (c *jobChange) endTurned() bool {
	return c.finished() != (jobIs(c.was, batchv1.JobComplete) || jobIs(c.was, batchv1.JobFailed))
}

func (c *jobChange) uncounted() {
	u := c.is.UncountedTerminatedPods
	if u == nil {
		return
	}
	seen := sets.New[types.UID]()
	for _, list := range []struct {
		name string
		uids []types.UID
	}{{"succeeded", u.Succeeded}, {"failed", u.Failed}} {
		for i, uid := range list.uids {
			at := rules.StatusPath.Child("uncountedTerminatedPods", list.name).Index(i)
			switch {
			case uid == "":
				c.errs = append(c.errs, field.Invalid(at, uid, "must not be empty"))
			case seen.Has(uid):
				c.errs = append(c.errs, field.Duplicate(at, uid))
			}
			seen.Insert(uid)
		}
	}
}

// outcome checks that conditions come in the right order, do not contradict each other, and are not
// removed.
func (c *jobChange) outcome() {
	failed, target, met := jobIs(c.is, batchv1.JobFailed), jobIs(c.is, batchv1.JobFailureTarget),
		jobIs(c.is, batchv1.JobSuccessCriteriaMet)
	for _, rule := range []struct {
		broken  bool
		message string
	}{
		{c.complete() && failed && c.turned(batchv1.JobComplete, batchv1.JobFailed),
			"cannot set Complete=True and Failed=true conditions"},
		{c.complete() && target && c.turned(batchv1.JobComplete, batchv1.JobFailureTarget),
			"cannot set Complete=True and FailureTarget=true conditions"},
		{failed && !target && (c.turned(batchv1.JobFailed) || c.failedIndexesChanged()),
			"cannot set Failed=True condition without the FailureTarget=true condition"},
		{c.complete() && !met && c.turned(batchv1.JobComplete, batchv1.JobSuccessCriteriaMet),
			"cannot set Complete=True condition without the SuccessCriteriaMet=true condition"},
		{met && failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions"},
		{met && target, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"},
		{c.spec.SuccessPolicy != nil && !met && c.complete(),
			"cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True"},
		{jobIs(c.was, batchv1.JobFailed) && !failed, "cannot disable the terminal Failed=True condition"},
		{jobIs(c.was, batchv1.JobComplete) && !c.complete(), "cannot disable the terminal Complete=True condition"},
		{jobIs(c.was, batchv1.JobFailureTarget) && !target, "cannot disable the terminal FailureTarget=True condition"},
		{jobIs(c.was, batchv1.JobSuccessCriteriaMet) && !met, "cannot disable the SuccessCriteriaMet=True condition"},
		{jobIs(c.was, batchv1.JobComplete) && !jobIs(c.was, batchv1.JobSuccessCriteriaMet) && met,
			"cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions"},
	} {
		if rule.broken {
			c.refuse("conditions", field.OmitValueType{}, rule.message)
		}
	}
}

func (c *jobChange) times() {
	start, end := c.is.StartTime, c.is.CompletionTime
	startChanged, endChanged := !start.Equal(c.was.StartTime), !end.Equal(c.was.CompletionTime)
	completeTurned := c.turned(batchv1.JobComplete)
	switch {
	case end != nil && !c.complete() && (completeTurned || endChanged):
		c.refuse("completionTime", end, "cannot set completionTime when there is no Complete=True condition")
	case end == nil && c.complete() && (completeTurned || endChanged):
		c.errs = append(c.errs,
			field.Required(rules.StatusPath.Child("completionTime"), "completionTime is required for Complete jobs"))
	}
	if start != nil && end != nil && end.Before(start) && (startChanged || endChanged) {
		c.refuse("completionTime", end, "must be equal to or after `startTime`")
	}
	if end != nil && c.was.CompletionTime != nil && endChanged {
		c.refuse("completionTime", end, "field is immutable")
	}
	suspended := c.spec.Suspend != nil && *c.spec.Suspend
	none := suspended && c.spec.Completions != nil && *c.spec.Completions == 0
	if start == nil && c.finished() && (c.endTurned() || startChanged) && !none {
		c.errs = append(c.errs,
			field.Required(rules.StatusPath.Child("startTime"), "startTime is required for finished job"))
	}
	resumes := jobIs(c.was, batchv1.JobSuspended) &&
		slices.ContainsFunc(c.is.Conditions, func(x batchv1.JobCondition) bool {
			return x.Type == batchv1.JobSuspended && x.Status == corev1.ConditionFalse
		})
	if c.was.StartTime != nil && startChanged && !resumes && !suspended {
		c.refuse("startTime", start, "field is immutable for unsuspended job once set")
	}
}

func (c *jobChange) pods() {
	s, was := c.is, c.was
	same := func(a, b *int32) bool { return apiequality.Semantic.DeepEqual(a, b) }
	if s.Active > 0 && c.finished() && (c.endTurned() || s.Active != was.Active) {
		c.refuse("active", s.Active, "active>0 is invalid for finished job")
	}
	if u := s.UncountedTerminatedPods; c.finished() && u != nil && len(u.Failed)+len(u.Succeeded) > 0 &&
		(c.endTurned() || !apiequality.Semantic.DeepEqual(u, was.UncountedTerminatedPods)) {
		c.refuse("uncountedTerminatedPods", u, "must be empty for finished job")
	}
	if t := s.Terminating; t != nil && *t > 0 && c.finished() && (c.endTurned() || !same(t, was.Terminating)) {
		c.refuse("terminating", *t, "terminating>0 is invalid for finished job")
	}
	if r := s.Ready; r != nil && *r > s.Active && (!same(r, was.Ready) || s.Active != was.Active) {
		c.refuse("ready", *r, "cannot set more ready pods than active")
	}
	if s.Failed < was.Failed {
		c.refuse("failed", s.Failed, "cannot decrease the failed counter")
	}
	// A job that is scaled down loses completed indexes.
	elastic := indexed(c.spec) && same(c.spec.Completions, c.spec.Parallelism)
	if s.Succeeded < was.Succeeded && !elastic {
		c.refuse("succeeded", s.Succeeded, "cannot decrease the succeeded counter")
	}
}

func (c *jobChange) failedIndexesChanged() bool {
	return !apiequality.Semantic.DeepEqual(c.is.FailedIndexes, c.was.FailedIndexes)
}

func (c *jobChange) indexes() {
	completed, failed := c.is.CompletedIndexes, c.is.FailedIndexes
	n := c.spec.Completions
	if completed != c.was.CompletedIndexes {
		if n != nil {
			if _, err := countIndexes(completed, *n); err != nil {
				c.refuse("completedIndexes", completed, fmt.Sprintf("error parsing completedIndexes: %v", err))
			}
		}
		if completed != "" && !indexed(c.spec) {
			c.refuse("completedIndexes", completed,
				"cannot set non-empty completedIndexes when non-indexed completion mode")
		}
	}
	if c.failedIndexesChanged() && failed != nil {
		switch {
		case c.spec.BackoffLimitPerIndex == nil:
			c.refuse("failedIndexes", *failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null")
		case n != nil:
			if _, err := countIndexes(*failed, *n); err != nil {
				c.refuse("failedIndexes", failed, fmt.Sprintf("error parsing failedIndexes: %v", err))
			}
		}
	}
	if (c.failedIndexesChanged() || completed != c.was.CompletedIndexes) && n != nil && failed != nil {
		if x, both := overlap(completed, *failed, *n); both {
			c.refuse("failedIndexes", *failed,
				fmt.Sprintf("failedIndexes and completedIndexes overlap at index: %d", x))
		}
	}
}

// overlap returns the first index that is in both lists. Unreadable parts are skipped. Each list may have hundreds of
// thousands of parts.
func overlap(a, b string, completions int32) (int32, bool) {
	x, y := intervals(a, completions), intervals(b, completions)
	for len(x) > 0 && len(y) > 0 {
		if x[0][0] <= y[0][1] && y[0][0] <= x[0][1] {
			return max(x[0][0], y[0][0]), true
		}
		if x[0][1] < y[0][1] {
			x = x[1:]
		} else {
			y = y[1:]
		}
	}
	return 0, false
}

// intervals returns the readable parts of a list, in order.
func intervals(list string, completions int32) [][2]int32 {
	var all [][2]int32
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		low, err := strconv.ParseInt(from, 10, 32)
		high, err2 := strconv.ParseInt(to, 10, 32)
		if err == nil && err2 == nil && int32(low) < completions && int32(high) < completions &&
			(!isRange || low < high) {
			all = append(all, [2]int32{int32(low), int32(high)})
		}
	}
	// A stored list need not be valid. Intervals that overlap are joined, so that both ends ascend.
	slices.SortFunc(all, func(a, b [2]int32) int { return cmp.Compare(a[0], b[0]) })
	joined := all[:0]
	for _, x := range all {
		if n := len(joined); n > 0 && x[0] <= joined[n-1][1] {
			joined[n-1][1] = max(joined[n-1][1], x[1])
			continue
		}
		joined = append(joined, x)
	}
	return joined
}
