package jobs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/job"
	"carob/internal/sim/fakeapi"
)

// checker records the actual events, and checks each change by them.
type checker struct {
	w          *world
	good, bad  map[types.UID]bool         // pods that succeeded; pods that failed or were to be deleted
	won        map[types.UID]map[int]bool // indexes with a pod that succeeded, by Job
	noted      map[types.UID]bool         // pods listed in some status
	lowest     map[types.UID]int32        // the fewest completions that each Job had
	unanswered map[types.UID]bool         // pods whose creation got no response
}

func newChecker(w *world) checker {
	return checker{w, map[types.UID]bool{}, map[types.UID]bool{}, map[types.UID]map[int]bool{}, map[types.UID]bool{},
		map[types.UID]int32{}, map[types.UID]bool{}}
}

// stored checks a change by any writer.
func (c *checker) stored(before fakeapi.Object, after fakeapi.Entry) {
	switch o := after.Object.(type) {
	case *corev1.Pod:
		c.pod(before, o)
	case *batchv1.Job:
		if o.Spec.Completions != nil {
			least, known := c.lowest[o.UID]
			if !known || *o.Spec.Completions < least {
				c.lowest[o.UID] = *o.Spec.Completions
			}
		}
		if old, ok := before.(*batchv1.Job); ok && !equality.Semantic.DeepEqual(old.Status, o.Status) {
			c.status(old, o)
		}
	}
}

// pod records how a pod ended, and checks the removal of its finalizer.
func (c *checker) pod(before fakeapi.Object, p *corev1.Pod) {
	owner := metav1.GetControllerOfNoCopy(p).UID
	if p.Status.Phase == corev1.PodSucceeded {
		c.good[p.UID] = true
		if c.won[owner] == nil {
			c.won[owner] = map[int]bool{}
		}
		c.won[owner][index(p)] = true
	}
	if p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil {
		c.bad[p.UID] = true
	}
	old, ok := before.(*corev1.Pod)
	if !ok || !job.Tracked(old) || job.Tracked(p) || c.w.c.reason != counted {
		return
	}
	o, ok := c.w.Get(owner).(*batchv1.Job)
	i := index(p)
	switch {
	case !ok || job.Finished(o), c.noted[p.UID]:
	case o.DeletionTimestamp != nil && c.unended(p.UID): // its pods go without a result (W5.44)
	case p.DeletionTimestamp != nil && holds(o, batchv1.JobSuccessCriteriaMet): // other pods were enough (W5.90)
	case i >= 0 && i >= int(c.lowest[owner]): // it was not needed for a while (W5.53)
	case i >= 0 && p.Status.Phase == corev1.PodSucceeded && (indexes(o.Status.CompletedIndexes)[i] || lost(o)[i]):
	default:
		fakeapi.Break(Kept, "%s of %s loses its finalizer, the status does not have it: %s", p.Status.Phase, p.Name, text(o))
	}
}

// unended reports whether a pod had not ended in the controller's view.
func (c *checker) unended(uid types.UID) bool {
	p, ok := c.w.c.pods.Get(uid).(*corev1.Pod)
	return ok && !workload.Terminal(p)
}

// status checks a status that the controller stored.
func (c *checker) status(old, o *batchv1.Job) {
	if job.Finished(old) {
		fakeapi.Break(Over, "%s became %s", text(old), text(o))
	}
	a, b := uncounted(old), uncounted(o)
	left := c.moved(o, a.Succeeded, b.Succeeded, c.good)
	if indexed := o.Spec.CompletionMode != nil; !indexed && o.Status.Succeeded != old.Status.Succeeded+left {
		fakeapi.Break(Once, "%d more succeeded: %s became %s", left, text(old), text(o))
	} else if indexed {
		c.indexes(old, o)
	}
	if n := c.moved(o, a.Failed, b.Failed, c.bad); o.Status.Failed != old.Status.Failed+n {
		fakeapi.Break(Once, "%d more failed: %s became %s", n, text(old), text(o))
	}
	if !job.Finished(o) {
		return
	}
	for _, p := range fakeapi.All[*corev1.Pod](c.w.API) {
		of := metav1.GetControllerOfNoCopy(p).UID == o.UID
		if of && !c.unanswered[p.UID] && (job.Tracked(p) || workload.Active(p)) {
			fakeapi.Break(Over, "%s is left: %s", p.Name, text(o))
		}
	}
}

// moved checks the pods whose results are recorded now, and returns how many were added to a
// counter.
func (c *checker) moved(o *batchv1.Job, a, b []types.UID, really map[types.UID]bool) (left int32) {
	for _, uid := range b {
		if slices.Contains(a, uid) {
			continue
		}
		// A Job that fails while it is being deleted counts its running pods as failed (W5.90).
		failing := o.DeletionTimestamp != nil && holds(o, batchv1.JobFailureTarget)
		if c.noted[uid] || !really[uid] && !failing {
			fakeapi.Break(Once, "%s is counted: known already %t, so it was %t: %s", uid, c.noted[uid], really[uid],
				text(o))
		}
		c.noted[uid] = true
	}
	for _, uid := range a {
		if slices.Contains(b, uid) {
			continue
		}
		if p, ok := c.w.Get(uid).(*corev1.Pod); ok && job.Tracked(p) {
			fakeapi.Break(Once, "%s is a number and has its finalizer", p.Name)
		}
		left++
	}
	return left
}

// indexes checks which indexes are finished.
func (c *checker) indexes(old, o *batchv1.Job) {
	before, after := indexes(old.Status.CompletedIndexes), indexes(o.Status.CompletedIndexes)
	if int(o.Status.Succeeded) != len(after) {
		fakeapi.Break(Once, "%d indexes: %s", len(after), text(o))
	}
	for i := range after {
		if !c.won[o.UID][i] || lost(o)[i] {
			fakeapi.Break(Once, "index %d completed: %s", i, text(o))
		}
	}
	for i := range before {
		if !after[i] && i < int(*o.Spec.Completions) {
			fakeapi.Break(Once, "index %d is lost: %s became %s", i, text(old), text(o))
		}
	}
}

// created checks a pod that the controller created, by the Job in the controller's view.
func (c *checker) created(known *batchv1.Job, made fakeapi.Object) {
	if known.Spec.Suspend != nil && *known.Spec.Suspend {
		fakeapi.Break(Suspended, "%s is made", made.GetName())
	}
	o, there := c.w.Get(known.UID).(*batchv1.Job)
	if there && job.Finished(o) || job.Finished(known) {
		fakeapi.Break(Over, "%s is made: %s", made.GetName(), text(known))
	}
	p, ok := made.(*corev1.Pod)
	if !ok {
		return
	}
	i := index(p)
	if there && i >= 0 && (indexes(o.Status.CompletedIndexes)[i] || lost(o)[i]) {
		fakeapi.Break(Indexes, "index %d has finished and runs again: %s", i, text(o))
	}
	active := int32(0)
	for _, q := range fakeapi.All[*corev1.Pod](c.w.API) {
		if metav1.GetControllerOfNoCopy(q).UID != known.UID || workload.Terminal(q) {
			continue
		}
		if q.UID != p.UID && c.unanswered[q.UID] && c.w.c.pods.Get(q.UID) == nil {
			continue // the controller could not have observed it yet
		}
		if workload.Active(q) {
			active++
		}
		covers := workload.Active(q) || *known.Spec.PodReplacementPolicy == batchv1.Failed
		if q.UID != p.UID && i >= 0 && index(q) == i && covers {
			fakeapi.Break(Indexes, "%s and %s", q.Name, p.Name)
		}
	}
	if most := *known.Spec.Parallelism; active > most {
		fakeapi.Break(NoMore, "%d active pods, parallelism is %d", active, most)
	}
}

// end checks the final state.
func (c *checker) end() {
	for _, p := range fakeapi.All[*corev1.Pod](c.w.API) {
		if job.Tracked(p) {
			fakeapi.Break(LetGo, "%s: %s", p.Name, c.text())
		}
		if workload.Active(p) {
			fakeapi.Break(Ends, "%s is active: %s", p.Name, c.text())
		}
	}
	for _, o := range fakeapi.All[*batchv1.Job](c.w.API) {
		if !job.Finished(o) {
			fakeapi.Break(Ends, "%s", text(o))
		}
	}
}

// text formats the existing Jobs.
func (c *checker) text() string {
	var out []string
	for _, o := range fakeapi.All[*batchv1.Job](c.w.API) {
		out = append(out, text(o))
	}
	return fmt.Sprintf("%d Jobs: %s", len(out), strings.Join(out, "; "))
}

func text(o *batchv1.Job) string {
	s, u := o.Status, uncounted(o)
	var text strings.Builder
	fmt.Fprintf(&text, "deleted=%t active=%d succeeded=%d failed=%d completed=%q lost=%v uncounted=%v/%v",
		o.DeletionTimestamp != nil, s.Active, s.Succeeded, s.Failed, s.CompletedIndexes, lost(o), u.Succeeded, u.Failed)
	for _, c := range s.Conditions {
		fmt.Fprintf(&text, " %s=%s(%s)", c.Type, c.Status, c.Reason)
	}
	return text.String()
}

func uncounted(o *batchv1.Job) batchv1.UncountedTerminatedPods {
	if u := o.Status.UncountedTerminatedPods; u != nil {
		return *u
	}
	return batchv1.UncountedTerminatedPods{}
}

func holds(o *batchv1.Job, kind batchv1.JobConditionType) bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

func lost(o *batchv1.Job) map[int]bool {
	if o.Status.FailedIndexes == nil {
		return nil
	}
	return indexes(*o.Status.FailedIndexes)
}

// indexes parses 0,2-5,7 independently, because the plan may be wrong (W5.52).
func indexes(s string) map[int]bool {
	out := map[int]bool{}
	for part := range strings.SplitSeq(s, ",") {
		from, to, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && ranged {
			last, err = strconv.Atoi(to)
		}
		if err != nil {
			if s != "" {
				fakeapi.Break(Once, "not a list of indexes: %q", s)
			}
			continue
		}
		for i := first; i <= last; i++ {
			out[i] = true
		}
	}
	return out
}

func index(p *corev1.Pod) int {
	if i, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation]); err == nil {
		return i
	}
	return -1
}
