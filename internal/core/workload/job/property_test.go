package job

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"carob/internal/core/workload"
)

// history is a world with random events, and its invariants.
type history struct {
	*world
	good, bad map[types.UID]bool // pods that ever succeeded; that ever failed or were deleted
	plain     bool               // no user deleted a pod or changed the Job
}

// lawful checks a status for what the API server would reject (W5.14), and for more results than
// pods (W5.31).
func (h *history) lawful(old, next *batchv1.Job) error {
	a, b := old.Status, next.Status
	is := func(s batchv1.JobStatus, kind batchv1.JobConditionType) bool {
		return slices.ContainsFunc(s.Conditions,
			func(c batchv1.JobCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
	}
	indexed := next.Spec.CompletionMode != nil && *next.Spec.CompletionMode == batchv1.IndexedCompletion
	u := b.UncountedTerminatedPods
	suspendedZero := next.Spec.Suspend != nil && *next.Spec.Suspend && next.Spec.Completions != nil &&
		*next.Spec.Completions == 0
	finished := is(b, batchv1.JobComplete) || is(b, batchv1.JobFailed)
	switch {
	case b.Failed < a.Failed:
		return errors.New("failed falls")
	case b.Succeeded < a.Succeeded && !indexed:
		return errors.New("succeeded falls")
	case *b.Ready > b.Active:
		return errors.New("more ready than active")
	case is(b, batchv1.JobComplete) && is(b, batchv1.JobFailed):
		return errors.New("complete and failed")
	case is(b, batchv1.JobComplete) && !is(b, batchv1.JobSuccessCriteriaMet),
		is(b, batchv1.JobFailed) && !is(b, batchv1.JobFailureTarget):
		return errors.New("finished without its interim condition")
	case is(b, batchv1.JobSuccessCriteriaMet) && is(b, batchv1.JobFailureTarget):
		return errors.New("succeeds and fails")
	case finished && (b.Active > 0 || *b.Terminating > 0 || len(u.Succeeded)+len(u.Failed) > 0 || b.StartTime == nil &&
		!suspendedZero):
		return errors.New("finished with something left")
	case (b.CompletionTime != nil) != is(b, batchv1.JobComplete):
		return errors.New("completion time of a Job that is not complete")
	case int(b.Failed)+len(u.Failed) > len(h.bad):
		return fmt.Errorf("%d failures of %d pods", int(b.Failed)+len(u.Failed), len(h.bad))
	case int(b.Succeeded)+len(u.Succeeded) > len(h.good):
		return fmt.Errorf("%d successes of %d pods", int(b.Succeeded)+len(u.Succeeded), len(h.good))
	}
	for _, c := range a.Conditions {
		if c.Type != batchv1.JobSuspended && !is(b, c.Type) {
			return fmt.Errorf("%s is gone", c.Type)
		}
	}
	if indexed && b.FailedIndexes != nil &&
		parseIndexes(b.CompletedIndexes, 100).common(parseIndexes(*b.FailedIndexes, 100)) > 0 {
		return errors.New("an index completed and failed")
	}
	return nil
}

// check checks the invariants whenever nothing is left to do.
func (h *history) check(t *rapid.T) {
	active, taken := 0, map[int]string{}
	for _, p := range h.pods {
		if workload.Terminal(p) || p.DeletionTimestamp != nil {
			continue
		}
		active++
		if h.job.Spec.CompletionMode == nil {
			continue
		}
		if other := taken[indexOf(p)]; other != "" {
			t.Fatalf("index of %s and %s", other, p.Name)
		}
		taken[indexOf(p)] = p.Name
	}
	draining := h.job.Spec.Completions == nil && h.job.Status.Succeeded > 0 // running pods may finish (W5.40)
	if active > int(*h.job.Spec.Parallelism) && h.job.DeletionTimestamp == nil && !draining {
		t.Fatalf("%d active pods, parallelism %d", active, *h.job.Spec.Parallelism)
	}
	if Finished(h.job) && active > 0 {
		t.Fatalf("%d active pods of a finished Job", active)
	}
	for _, p := range h.pods {
		if Finished(h.job) && Tracked(p) {
			t.Fatalf("%s of a finished Job has the finalizer", p.Name)
		}
	}
}

// TestRandomHistories makes Jobs of all kinds, lets pods end and vanish, users change specs, and carob
// end between any two writes: each pod counts once, each index completes once, and there are never
// more pods than wanted (W5.31, W5.40, W5.51).
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{world: newWorld(), good: map[types.UID]bool{}, bad: map[types.UID]bool{}, plain: true}
		h.invalid = h.lawful
		h.removed = func(p *corev1.Pod) {
			if Tracked(p) && p.Status.Phase != corev1.PodSucceeded {
				h.bad[p.UID] = true // also those that a failed Job deletes (W5.90)
			}
		}
		if err := h.apply(randomSpec(t)); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if t.Failed() {
				t.Log("\n" + strings.Join(h.log, "\n"))
			}
		}()
		sync := func() {
			if rapid.IntRange(0, 4).Draw(t, "crash") == 0 {
				n := rapid.IntRange(1, 6).Draw(t, "write")
				h.write = func(string) bool { n--; return n > 0 }
			}
			if !h.sync() {
				h.logf("crash")
				h.backoff, h.write = Backoff{}, func(string) bool { return true }
				if !h.sync() {
					t.Fatal("an unexpected crash")
				}
			}
			h.write = func(string) bool { return true }
			h.check(t)
		}
		sync()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			h.step(t)
			sync()
		}
		for range 200 { // no more failures from here on
			if Finished(h.job) {
				break
			}
			for _, p := range slices.Clone(h.pods) {
				if p.DeletionTimestamp != nil {
					h.gone(p)
				} else if !workload.Terminal(p) {
					h.good[p.UID] = true
					h.exit(p, 0)
				}
			}
			h.job.Spec.Suspend = nil
			h.job.Spec.Parallelism = new(max(*h.job.Spec.Parallelism, 1))
			h.refuse = false
			sync()
			h.now = h.now.Add(10 * time.Minute)
			sync()
		}
		if !Finished(h.job) && h.job.DeletionTimestamp == nil {
			t.Fatalf("it does not end: %s", summary(&h.job.Status, h.now))
		}
		if h.plain && h.job.Spec.CompletionMode == nil && workload.FinishedAs(h.job) == batchv1.JobComplete &&
			(int(h.job.Status.Succeeded) != len(h.good) || int(h.job.Status.Failed) != len(h.bad)) {
			t.Fatalf("%d succeeded and %d failed; the status says %s", len(h.good), len(h.bad),
				summary(&h.job.Status, h.now))
		}
	})
}

func randomSpec(t *rapid.T) string {
	parallelism := rapid.IntRange(1, 4).Draw(t, "parallelism")
	s := fmt.Sprintf("parallelism: %d\nbackoffLimit: %d\n", parallelism, rapid.IntRange(0, 8).Draw(t, "backoffLimit"))
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		s += fmt.Sprintf("completions: %d\n", rapid.IntRange(1, 8).Draw(t, "completions"))
	case 1: // a work queue
	default:
		s += fmt.Sprintf("completionMode: Indexed\ncompletions: %d\n", rapid.IntRange(1, 8).Draw(t, "completions"))
		if rapid.Bool().Draw(t, "perIndex") {
			s += fmt.Sprintf("backoffLimitPerIndex: %d\n", rapid.IntRange(0, 2).Draw(t, "backoffLimitPerIndex"))
		}
		if rapid.Bool().Draw(t, "successPolicy") {
			s += fmt.Sprintf("successPolicy: {rules: [{succeededCount: %d}]}\n",
				rapid.IntRange(1, 3).Draw(t, "succeededCount"))
		}
	}
	if rapid.Bool().Draw(t, "onlyFailed") {
		s += "podReplacementPolicy: Failed\n"
	}
	if rapid.IntRange(0, 3).Draw(t, "deadline") == 0 {
		s += "activeDeadlineSeconds: 600\n"
	}
	if rapid.IntRange(0, 3).Draw(t, "suspended") == 0 {
		s += "suspend: true\n"
	}
	return s
}

// step applies one random event.
func (h *history) step(t *rapid.T) {
	var p *corev1.Pod
	if len(h.pods) > 0 {
		p = h.pods[rapid.IntRange(0, len(h.pods)-1).Draw(t, "pod")]
	}
	what := rapid.IntRange(0, 11).Draw(t, "what")
	switch {
	case what <= 1 && p != nil && !workload.Terminal(p):
		h.run(p)
	case what <= 4 && p != nil && !workload.Terminal(p):
		h.good[p.UID] = true
		h.logf("%s succeeds", p.Name)
		h.exit(p, 0)
	case what <= 6 && p != nil && !workload.Terminal(p):
		h.bad[p.UID] = true
		h.logf("%s fails", p.Name)
		h.exit(p, 1)
	case what == 7 && p != nil:
		h.plain = false
		h.logf("somebody deletes %s", p.Name)
		h.remove(p.Name)
	case what == 8 && p != nil && p.DeletionTimestamp != nil:
		h.logf("%s is gone", p.Name)
		h.gone(p)
	case what == 9:
		h.plain = false
		h.job.Spec.Suspend = new(rapid.Bool().Draw(t, "suspend"))
	case what == 10:
		h.plain = false
		n := int32(rapid.IntRange(0, 6).Draw(t, "to"))
		h.job.Spec.Parallelism = &n
		if h.job.Spec.CompletionMode != nil && rapid.Bool().Draw(t, "elastic") {
			h.job.Spec.Completions = &n
		}
	case what == 11 && rapid.IntRange(0, 5).Draw(t, "rare") == 0:
		h.plain = false
		h.job.DeletionTimestamp = new(metav1.NewTime(h.now))
	default:
		h.refuse = rapid.Bool().Draw(t, "refuse")
		h.advance(time.Duration(rapid.IntRange(1, 120).Draw(t, "seconds")) * time.Second)
	}
}

// FuzzIndexes: a parsed set prints the same and has the listed indexes (W5.52).
func FuzzIndexes(f *testing.F) {
	for _, s := range []string{"", "0", "0,2-5,7,8", "1-", "-1", "5-2", "a,3", "1,1,1", "3,1-2",
		"99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		x := parseIndexes(s, 1000)
		if again := parseIndexes(x.String(), 1000); again.String() != x.String() || again.total() != x.total() {
			t.Errorf("%q is %v, then %v", s, x, again)
		}
		n := 0
		for i := range 1000 {
			if x.has(i) {
				n++
			}
		}
		if n != x.total() || x.common(x) != n {
			t.Errorf("%q has %d indexes, total is %d", s, n, x.total())
		}
	})
}
