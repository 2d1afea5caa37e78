// Package cronjobs runs the plan of CronJobs against a store in memory, in random steps from one seed: time passes in
// minutes; users suspend, change policies, and delete; Jobs end and disappear; watches deliver events late, twice, or
// only with a new list; there are conflicts and lost responses; the controller ends between any two writes. After each
// write it checks the invariants. Its tests run it; it must never touch a real cluster.
//
// Contract: docs/spec/workloads.md.
package cronjobs

import (
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/cronjob"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	Once      fakeapi.Invariant = "no two Jobs are made for one time (W6.15, W6.22)"
	Latest    fakeapi.Invariant = "a Job is made for a time that has come, not before the last one (W6.12)"
	Alone     fakeapi.Invariant = "Forbid and Replace make no Job while another one runs (W6.16, W6.17)"
	Suspended fakeapi.Invariant = "a suspended CronJob makes no Job (W6.18)"
	Forward   fakeapi.Invariant = "the last schedule and success times never go back (W6.24)"
	Ends      fakeapi.Invariant = "after the last fault, status and history are right, and nothing is written between runs (W6.24, W6.26)"
)

// Sabotage breaks the controller in one way; the zero value breaks nothing.
type Sabotage struct {
	In  func(in *cronjob.Input)                      // changes the input of the plan; CronJob is a copy
	Out func(in *cronjob.Input, out *cronjob.Output) // changes the plan
}

var begin = time.Date(2026, 11, 22, 12, 0, 20, 0, time.UTC)

// every is a schedule: every so many minutes.
type every int

func (e every) Next(t time.Time) time.Time {
	step := time.Duration(e) * time.Minute
	return t.Truncate(step).Add(step)
}

func schedule(cj *batchv1.CronJob) every {
	n := 0
	if _, err := fmt.Sscanf(cj.Spec.Schedule, "*/%d * * * *", &n); err != nil {
		panic(err)
	}
	return every(n)
}

type world struct {
	*fakeapi.API
	sabotage   Sabotage
	c          *Controller
	uid        types.UID
	unanswered map[types.UID]bool   // Jobs whose creation got no response in this process
	made       map[string]types.UID // the Job created under each name
}

// Run runs so many steps of a seed and returns the first broken invariant, nil for none.
func Run(seed uint64, steps int, sabotage Sabotage) error {
	return fakeapi.Catch(func() {
		w := &world{API: fakeapi.New(seed, begin), sabotage: sabotage, made: map[string]types.UID{}}
		w.Stored = w.stored
		w.uid = w.Create(w.cronJob()).GetUID()
		w.start()
		for range steps {
			w.step()
		}
		w.rest()
	})
}

// start starts a process with the controller.
func (w *world) start() {
	w.unanswered = map[types.UID]bool{}
	created := func(read *batchv1.CronJob, j fakeapi.Object, answered bool) {
		w.unanswered[j.GetUID()] = !answered
		w.created(read, j)
	}
	w.c = NewController(w.API, w.Client(), fakeapi.NewCaches(w.API), Hooks{Sabotage: w.sabotage, Created: created})
}

func (w *world) turn() {
	if !w.c.Turn() {
		w.start()
	}
}

func (w *world) cronJob() *batchv1.CronJob {
	cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "c"}}
	cj.Spec = batchv1.CronJobSpec{
		ConcurrencyPolicy: w.policy(), Schedule: fmt.Sprintf("*/%d * * * *", 1+w.IntN(5)),
		SuccessfulJobsHistoryLimit: w.limit(), FailedJobsHistoryLimit: w.limit(),
	}
	if w.IntN(4) == 0 {
		cj.Spec.StartingDeadlineSeconds = new(int64(30 + w.IntN(300)))
	}
	return cj
}

func (w *world) limit() *int32 { return new(int32(w.IntN(3))) } //nolint:gosec // small

func (w *world) policy() batchv1.ConcurrencyPolicy {
	all := []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent}
	return all[w.IntN(len(all))]
}

// step does one random thing.
func (w *world) step() {
	w.Now = w.Now.Add(time.Duration(w.IntN(20)) * time.Second)
	switch n := w.IntN(100); {
	case n < 20:
		w.c.cronJobs.Deliver()
	case n < 45:
		w.c.jobs.Deliver()
	case n < 75:
		w.turn()
	case n < 90:
		w.run()
	case n < 96:
		w.user()
	case n < 98:
		w.Now = w.Now.Add(time.Duration(w.IntN(40)) * time.Minute) // the controller is not running
	default:
		w.start()
	}
}

func (w *world) user() {
	jobs := fakeapi.All[*batchv1.Job](w.API)
	what := w.IntN(10)
	if what < 2 {
		if len(jobs) > 0 {
			w.deleteJob(jobs[w.IntN(len(jobs))])
		}
		return
	}
	w.Change(w.uid, func(o fakeapi.Object) {
		cj, ok := o.(*batchv1.CronJob)
		switch {
		case !ok:
		case what < 6:
			cj.Spec.Suspend = new(w.IntN(3) == 0)
		case what < 8:
			cj.Spec.ConcurrencyPolicy = w.policy()
		default:
			cj.Spec.SuccessfulJobsHistoryLimit, cj.Spec.FailedJobsHistoryLimit = w.limit(), w.limit()
		}
	})
}

// deleteJob is a user who deletes a Job. If no status that the controller has read lists the Job, the
// controller may never read it.
func (w *world) deleteJob(j *batchv1.Job) {
	cj, ok := w.c.cronJobs.Get(w.uid).(*batchv1.CronJob)
	last := (*metav1.Time)(nil)
	if ok {
		last = cj.Status.LastScheduleTime
	}
	if at, err := scheduled(j); err == nil && (last == nil || last.Time.Before(at)) {
		delete(w.made, j.Name)
	}
	w.Delete(j.UID, 0)
}

// scheduled returns the time for which a Job was created.
func scheduled(j fakeapi.Object) (time.Time, error) {
	return time.Parse(time.RFC3339, j.GetAnnotations()[batchv1.CronJobScheduledTimestampAnnotation])
}

// run lets Jobs start and end.
func (w *world) run() {
	for _, j := range fakeapi.All[*batchv1.Job](w.API) {
		if workload.FinishedAs(j) != "" || w.One(3) {
			continue
		}
		w.Change(j.UID, func(o fakeapi.Object) {
			j, ok := o.(*batchv1.Job)
			if !ok {
				return
			}
			if j.Status.StartTime == nil {
				j.Status.StartTime = new(metav1.NewTime(w.Now))
				return
			}
			kind := batchv1.JobFailed
			if w.IntN(3) > 0 {
				kind, j.Status.CompletionTime = batchv1.JobComplete, new(metav1.NewTime(w.Now))
			}
			j.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue}}
		})
	}
}

// rest ends all faults, lets Jobs end, and checks the state between two runs. The controller is called only after
// an event of its watches, and at the time that it returned.
func (w *world) rest() {
	w.Faultless = true
	w.Change(w.uid, func(o fakeapi.Object) {
		if cj, ok := o.(*batchv1.CronJob); ok {
			cj.Spec.Suspend = nil
		}
	})
	runs := 0
	for last := w.Now.Add(3 * time.Hour); ; {
		before := w.Writes()
		w.c.cronJobs.CatchUp()
		w.c.jobs.CatchUp()
		w.turn()
		for i := 0; w.c.dirty && i < 20; i++ {
			w.c.cronJobs.CatchUp()
			w.c.jobs.CatchUp()
			w.turn()
		}
		w.run()
		switch {
		case w.Now.After(last):
			fakeapi.Break(Ends, "the writes do not end")
		case w.Writes() > before:
			w.Now = w.Now.Add(time.Second)
		case w.c.due.IsZero():
			fakeapi.Break(Ends, "the controller does not wait for the next run")
		case runs == 4:
			w.checkEnd()
			return
		default:
			if !w.c.due.After(w.Now) {
				fakeapi.Break(Ends, "the controller is called again at once, without an end")
			}
			runs++
			w.Now = w.c.due
		}
	}
}

// checkEnd checks the state shortly before a run.
func (w *world) checkEnd() {
	cj, ok := w.Get(w.uid).(*batchv1.CronJob)
	if !ok {
		fakeapi.Break(Ends, "the CronJob does not exist")
	}
	of := map[batchv1.JobConditionType]int32{}
	for _, j := range fakeapi.All[*batchv1.Job](w.API) {
		of[workload.FinishedAs(j)]++
	}
	switch {
	case of[""] > 0 || len(cj.Status.Active) > 0:
		fakeapi.Break(Ends, "%d run, %d are in the status", of[""], len(cj.Status.Active))
	case of[batchv1.JobComplete] > *cj.Spec.SuccessfulJobsHistoryLimit,
		of[batchv1.JobFailed] > *cj.Spec.FailedJobsHistoryLimit:
		fakeapi.Break(Ends, "the history is too long: %v", of)
	}
	last, since := cj.Status.LastScheduleTime, schedule(cj)
	if last == nil || since.Next(last.Time).Add(time.Duration(since)*time.Minute).Before(w.Now) {
		fakeapi.Break(Ends, "it is %v, the last run was at %v", w.Now, last)
	}
}

// stored checks a change of the CronJob's status.
func (w *world) stored(before fakeapi.Object, after fakeapi.Entry) {
	old, ok := before.(*batchv1.CronJob)
	now, is := after.Object.(*batchv1.CronJob)
	if !ok || !is {
		return
	}
	for _, t := range [][2]*metav1.Time{{old.Status.LastScheduleTime, now.Status.LastScheduleTime},
		{old.Status.LastSuccessfulTime, now.Status.LastSuccessfulTime}} {
		if t[0] != nil && (t[1] == nil || t[1].Before(t[0])) {
			fakeapi.Break(Forward, "%v became %v", t[0], t[1])
		}
	}
}

// created checks a Job that the controller created for the version of the CronJob that it had read.
func (w *world) created(read *batchv1.CronJob, j fakeapi.Object) {
	if other, ok := w.made[j.GetName()]; ok {
		fakeapi.Break(Once, "%s is made again, was %s", j.GetName(), other)
	}
	w.made[j.GetName()] = j.GetUID()
	at, err := scheduled(j)
	last := read.Status.LastScheduleTime
	step := schedule(read)
	named := err == nil && step.Next(at.Add(-time.Second)).Equal(at)
	if !named || at.After(w.Now) || !step.Next(at).After(w.Now) || last != nil && !at.After(last.Time) {
		fakeapi.Break(Latest, "it is %v, a Job for %v, the last was for %v: %v", w.Now, at, last, err)
	}
	if read.Spec.Suspend != nil && *read.Spec.Suspend {
		fakeapi.Break(Suspended, "%s is made", j.GetName())
	}
	if read.Spec.ConcurrencyPolicy == batchv1.AllowConcurrent {
		return
	}
	others := slices.DeleteFunc(fakeapi.All[*batchv1.Job](w.API), func(o *batchv1.Job) bool {
		unseen := w.unanswered[o.UID] && w.c.jobs.Get(o.UID) == nil // the controller cannot have read it yet
		return o.UID == j.GetUID() || workload.FinishedAs(o) != "" || unseen
	})
	if len(others) > 0 {
		fakeapi.Break(Alone, "%s runs when %s is made", others[0].Name, j.GetName())
	}
}
