package cronjob

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
)

func newCronJob(change func(*batchv1.CronJobSpec)) *batchv1.CronJob {
	cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "cj-uid"}}
	cj.Spec = batchv1.CronJobSpec{Schedule: "* * * * *", ConcurrencyPolicy: batchv1.AllowConcurrent,
		SuccessfulJobsHistoryLimit: new(int32(3)), FailedJobsHistoryLimit: new(int32(1))}
	if change != nil {
		change(&cj.Spec)
	}
	return cj
}

func start(ctx context.Context, t *testing.T, api *controllertest.API) *controllertest.Running {
	t.Helper()
	events := record.NewFakeRecorder(100_000)
	cronJobs, jobs := source.CronJobs(api), source.Jobs(api)
	c, err := New(api, events, cronJobs, jobs)
	if err != nil {
		t.Fatal(err)
	}
	return controllertest.Start(ctx, c, events, cronJobs, jobs)
}

func finish(api *controllertest.API, name string) {
	controllertest.Change(api, "ns", name, func(j *batchv1.Job) {
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		j.Status.CompletionTime = &now
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	})
}

func names(api *controllertest.API) []string {
	var out []string
	for _, j := range controllertest.All[*batchv1.Job](api) {
		out = append(out, j.Name)
	}
	return out
}

// W13.50, W6.30; the clock of a bubble begins on 1 January 2000 at midnight UTC.
func TestEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(newCronJob(nil))
		r := start(t.Context(), t, api)
		defer r.Stop()
		time.Sleep(90 * time.Second)
		if got := names(api); !slices.Equal(got, []string{"c-15778081"}) {
			t.Fatalf("Jobs %q after 90 s", got)
		}
		finish(api, "c-15778081")
		time.Sleep(time.Second)
		s := controllertest.All[*batchv1.CronJob](api)[0].Status
		if len(s.Active) != 0 || s.LastSuccessfulTime == nil || s.LastScheduleTime == nil {
			t.Errorf("status %+v", s)
		}
		want := []string{"Normal SuccessfulCreate Created job c-15778081",
			"Normal SawCompletedJob Saw completed job: c-15778081, condition: Complete"}
		if got := r.Events(); !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		// A new schedule applies only to the future (W6.10).
		controllertest.Change(api, "ns", "c", func(cj *batchv1.CronJob) { cj.Spec.Schedule = "0 12 * * *" })
		time.Sleep(11 * time.Hour)
		if got := names(api); len(got) > 2 {
			t.Errorf("Jobs %q of a replaced schedule", got)
		}
		time.Sleep(time.Hour)
		if got := names(api); !slices.Contains(got, "c-15778800") {
			t.Errorf("Jobs %q, none at noon", got)
		}
	})
}

// W6.33: the events of Jobs that are deleted because of the history limit, and of a deletion that fails.
func TestHistoryEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(newCronJob(func(s *batchv1.CronJobSpec) {
			s.SuccessfulJobsHistoryLimit = new(int32(0))
		}))
		refused := false
		api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "delete" && gvr.Resource == "jobs" && !refused {
				refused = true
				return apierrors.NewForbidden(gvr.GroupResource(), "c-15778081", errors.New("no"))
			}
			return nil
		}
		r := start(t.Context(), t, api)
		defer r.Stop()
		time.Sleep(61 * time.Second)
		finish(api, "c-15778081")
		time.Sleep(time.Second)
		api.Before = nil
		controllertest.Change(api, "ns", "c", func(cj *batchv1.CronJob) { cj.Spec.Suspend = new(true) })
		time.Sleep(10 * time.Minute)
		if left := names(api); len(left) != 0 {
			t.Errorf("Jobs %q", left)
		}
		events := r.Events()
		for _, want := range []string{"Normal SuccessfulDelete Deleted job c-15778081",
			`Warning FailedDelete Deleted job: jobs.batch "c-15778081" is forbidden: no`} {
			if !slices.Contains(events, want) {
				t.Errorf("no event %q in %q", want, events)
			}
		}
	})
}

// A webhook refuses the deletion of a Job as if it did not exist, or as a conflict: the CronJob goes on.
func TestRefusedDeletions(t *testing.T) {
	for name, refusal := range map[string]error{
		"not found": apierrors.NewNotFound(batchv1.Resource("jobs"), "c-15778081"),
		"conflict":  apierrors.NewConflict(batchv1.Resource("jobs"), "c-15778081", errors.New("a webhook says so")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := controllertest.New(newCronJob(func(s *batchv1.CronJobSpec) {
					s.SuccessfulJobsHistoryLimit = new(int32(0))
				}))
				refused := false
				api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
					if verb == "delete" && gvr.Resource == "jobs" && !refused {
						refused = true
						return refusal
					}
					return nil
				}
				r := start(t.Context(), t, api)
				defer r.Stop()
				time.Sleep(61 * time.Second)
				finish(api, "c-15778081")
				time.Sleep(2 * time.Minute)
				if left := names(api); !refused || slices.Contains(left, "c-15778081") || len(left) == 0 {
					t.Errorf("refused %v, Jobs %q", refused, left)
				}
			})
		})
	}
}

// A Job that can't be created: upstream's event, and growing waits (W6.34).
func TestCreationFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(newCronJob(func(s *batchv1.CronJobSpec) { s.Schedule = "@hourly" }))
		tries := 0
		api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "create" && gvr.Resource == "jobs" {
				tries++
				return apierrors.NewForbidden(gvr.GroupResource(), "x", errors.New("exceeded quota"))
			}
			return nil
		}
		r := start(t.Context(), t, api)
		defer r.Stop()
		time.Sleep(70 * time.Minute)
		if tries < 8 || tries > 25 {
			t.Errorf("%d tries in ten minutes", tries)
		}
		for _, e := range r.Events() {
			if e != `Warning FailedCreate Error creating job: jobs.batch "x" is forbidden: exceeded quota` {
				t.Errorf("event %q", e)
			}
		}
	})
}

// Late, double and lost events, lost responses, crashes between any two writes: no Job is created
// twice for a time, and Forbid is respected.
func TestConvergesUnderFaults(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { trouble(t, rand.New(rand.NewPCG(seed, 2))) })
		})
	}
}

func trouble(t *testing.T, random *rand.Rand) {
	policy := []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent,
		batchv1.ReplaceConcurrent}[random.IntN(3)]
	api := controllertest.New(newCronJob(func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = policy }))
	var mu sync.Mutex
	var r *controllertest.Running
	dying, noFaults := false, false // noFaults: the final phase without failures
	made := map[string]int{}
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	chance := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return !noFaults && random.IntN(n) == 0
	}
	api.Late = func() time.Duration { return time.Duration(roll(2)) * 500 * time.Millisecond }
	api.Faults = func() controllertest.Fault {
		switch {
		case chance(10):
			return controllertest.Cut
		case chance(5):
			return controllertest.Twice
		}
		return controllertest.None
	}
	api.Before = func(string, schema.GroupVersionResource, metav1.Object) error {
		ends := chance(12)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case dying:
			return errors.New("carob has ended")
		case r != nil && ends:
			dying = true
			r.Cancel()
			return errors.New("carob ends")
		}
		return nil
	}
	api.After = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
		if verb == "create" && gvr.Resource == "jobs" {
			mu.Lock()
			made[o.GetName()]++
			mu.Unlock()
		}
		if chance(12) {
			return apierrors.NewTimeoutError("the answer is lost", 1)
		}
		return nil
	}
	begin := func() {
		// The first write of the new controller waits until r is set to it, so that ending it does not end the old
		// one again.
		mu.Lock()
		defer mu.Unlock()
		dying = false
		r = start(t.Context(), t, api)
	}
	begin()
	defer func() {
		r.Stop()
		time.Sleep(time.Minute) // late events
	}()
	for range 200 {
		time.Sleep(time.Duration(roll(50)) * time.Second)
		select {
		case <-r.Ended():
			begin()
		default:
		}
		running := 0
		for _, j := range controllertest.All[*batchv1.Job](api) {
			if workload.FinishedAs(j) != "" {
				continue
			}
			running++
			if roll(2) == 0 {
				finish(api, j.Name)
			}
		}
		if policy == batchv1.ForbidConcurrent && running > 1 {
			t.Fatalf("%d Jobs run", running)
		}
	}
	mu.Lock()
	noFaults = true
	mu.Unlock()
	finishAll := func() {
		select {
		case <-r.Ended():
			begin()
		default:
		}
		for _, j := range controllertest.All[*batchv1.Job](api) {
			if workload.FinishedAs(j) == "" {
				finish(api, j.Name)
			}
		}
	}
	for range 3 { // all back-offs have passed
		time.Sleep(time.Minute)
		finishAll()
	}
	mu.Lock()
	before := len(made)
	mu.Unlock()
	for range 2 {
		time.Sleep(time.Minute)
		finishAll()
	}
	mu.Lock()
	defer mu.Unlock()
	for name, n := range made {
		if n > 1 {
			t.Errorf("%s was made %d times", name, n)
		}
	}
	if len(made) == before {
		t.Errorf("no Job was made with %s in two minutes after the trouble", policy)
	}
}

// The response to the status with the new Job is lost, the user deletes the Job at once, and the watch of Jobs
// is ahead of the one of CronJobs, which shows neither. The Job must not be created again for that time, even
// if the CronJob cannot be read for a while.
func TestLostStatusAndDeletedJob(t *testing.T) {
	for _, readsFail := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			api := controllertest.New(newCronJob(func(s *batchv1.CronJobSpec) { s.Schedule = "@hourly" }))
			api.LateOf = func(gvr schema.GroupVersionResource) time.Duration {
				if gvr.Resource == "cronjobs" {
					return 10 * time.Second
				}
				return 0
			}
			made, lost, reads := 0, false, 0
			api.After = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
				switch cj, ok := o.(*batchv1.CronJob); {
				case verb == "create" && gvr.Resource == "jobs":
					made++
				case ok && cj.Status.LastScheduleTime != nil && !lost:
					lost = true
					for _, ref := range cj.Status.Active {
						go api.Remove(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: ref.Name}})
					}
					return apierrors.NewTimeoutError("the answer is lost", 1)
				}
				return nil
			}
			api.PrependReactor("get", "cronjobs", func(ktesting.Action) (bool, runtime.Object, error) {
				if reads++; readsFail && reads < 5 {
					return true, nil, errors.New("no connection")
				}
				return false, nil, nil
			})
			r := start(t.Context(), t, api)
			defer r.Stop()
			time.Sleep(90 * time.Minute)
			if made != 1 || !lost {
				t.Errorf("blind: %t: %d Jobs were made for one time, answer lost: %t", readsFail, made, lost)
			}
			time.Sleep(40 * time.Minute)
			if made != 2 {
				t.Errorf("blind: %t: %d Jobs were made for two times", readsFail, made)
			}
		})
	}
}

// The response to the creation of a Job is lost, and its watch is late: the Job still counts. Forbid starts no
// second one, neither in the same minute nor in the next one, when the retry happens (W6.16), and there is no event
// that it went missing.
func TestLostResponseToCreation(t *testing.T) {
	for _, begin := range []time.Duration{0, 119990 * time.Millisecond} {
		t.Run(begin.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := controllertest.New(newCronJob(func(s *batchv1.CronJobSpec) {
					s.ConcurrencyPolicy = batchv1.ForbidConcurrent
				}))
				api.LateOf = func(gvr schema.GroupVersionResource) time.Duration {
					if gvr.Resource == "jobs" {
						return 10 * time.Minute
					}
					return 0
				}
				lost := false
				api.After = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
					if verb == "create" && gvr.Resource == "jobs" && !lost {
						lost = true
						return apierrors.NewTimeoutError("the answer is lost", 1)
					}
					return nil
				}
				time.Sleep(begin)
				r := start(t.Context(), t, api)
				defer r.Stop()
				time.Sleep(15 * time.Minute)
				if got := names(api); !slices.Equal(got, []string{"c-15778081"}) || !lost {
					t.Errorf("Jobs %q, want one; answer lost: %t", got, lost)
				}
				for _, e := range r.Events() {
					if strings.Contains(e, "MissingJob") {
						t.Errorf("event %q", e)
					}
				}
			})
		})
	}
}

// Times that the clock skips are noticed at once: by a machine that was suspended, or whose clock is set forward by a
// day. One Job is started, for the latest of the times; a clock that is set back starts none for a time again.
func TestClockIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(newCronJob(func(s *batchv1.CronJobSpec) { s.Schedule = "0 * * * *" }))
		events := record.NewFakeRecorder(1000)
		cronJobs, jobs := source.CronJobs(api), source.Jobs(api)
		c, err := New(api, events, cronJobs, jobs)
		if err != nil {
			t.Fatal(err)
		}
		var ahead atomic.Int64
		c.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		r := controllertest.Start(t.Context(), c, events, cronJobs, jobs)
		defer r.Stop()
		time.Sleep(10 * time.Minute)
		for _, at := range []struct {
			ahead time.Duration
			jobs  []string
		}{
			{24 * time.Hour, []string{"c-15779520"}}, // 2 January, 0:10
			{23 * time.Hour, []string{"c-15779520"}},
			{25 * time.Hour, []string{"c-15779520", "c-15779580"}},
		} {
			ahead.Store(int64(at.ahead))
			c.ClockSet()
			time.Sleep(time.Second)
			if got := names(api); !slices.Equal(got, at.jobs) {
				t.Errorf("Jobs %q after the clock was set to %v, want %q", got, c.now().UTC(), at.jobs)
			}
		}
	})
}
