package cronjob

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"carob/internal/core/workload"
)

var schedules = []string{"* * * * *", "*/5 * * * *", "30 6-16/4 * * 1-5", "0 0 1 * *", "15 3 * * 0", "0 12 29 2 *",
	"@hourly", "@every 7m", "@every 61s", "0 9 * * 1-5", "10,20 * * * *"}

// The latest time of a schedule is the same as in a search of each time (W6.12).
func TestRecent(t *testing.T) {
	newYork, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom(schedules).Draw(t, "schedule")
		s, err := cron.ParseStandard(text)
		if err != nil {
			t.Fatal(err)
		}
		zone := rapid.SampledFrom([]*time.Location{time.UTC, newYork}).Draw(t, "zone")
		from := begin.Add(time.Duration(rapid.IntRange(0, 366*24*3600).Draw(t, "from")) * time.Second).In(zone)
		now := from.Add(time.Duration(rapid.IntRange(0, 10*24*3600).Draw(t, "for")) * time.Second)
		var want time.Time
		for at := s.Next(from); !at.IsZero() && !at.After(now); at = s.Next(at) {
			want = at
		}
		at, found, _, err := recent(from, now, s)
		if err != nil || found == want.IsZero() || found && !at.Equal(want) {
			t.Fatalf("%s from %v to %v: %v %v %v, want %v", text, from, now, at, found, err, want)
		}
	})
}

// With random events for Jobs and restarts of carob: no Job is created twice for a time, with
// Forbid and Replace no two run, the last schedule time never goes back, histories keep their
// limits, and a turn ends.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		policy := rapid.SampledFrom([]batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent,
			batchv1.ReplaceConcurrent}).Draw(t, "policy")
		limit := rapid.IntRange(0, 2).Draw(t, "limit")
		spec := fmt.Sprintf(
			"schedule: %q\nconcurrencyPolicy: %s\nsuccessfulJobsHistoryLimit: %d\nfailedJobsHistoryLimit: %d\n",
			rapid.SampledFrom(schedules).Draw(t, "schedule"), policy, limit, limit)
		if rapid.Bool().Draw(t, "deadline") {
			spec += "startingDeadlineSeconds: 100\n"
		}
		if err := w.apply(spec); err != nil {
			t.Fatal(err)
		}
		last := time.Time{}
		check := func() {
			running, over := 0, map[batchv1.JobConditionType]int{}
			for _, j := range w.jobs {
				if kind := workload.FinishedAs(j); kind == "" {
					running++
				} else {
					over[kind]++
				}
			}
			if policy != batchv1.AllowConcurrent && running > 1 {
				t.Fatalf("%d Jobs run with %s:\n%s", running, policy, strings.Join(w.log, "\n"))
			}
			for name, n := range w.names {
				if n > 1 {
					t.Fatalf("%s was made %d times:\n%s", name, n, strings.Join(w.log, "\n"))
				}
			}
			for kind, n := range over {
				if n > limit {
					t.Fatalf("%d Jobs that are %s, the limit is %d:\n%s", n, kind, limit, strings.Join(w.log, "\n"))
				}
			}
			if at := w.cj.Status.LastScheduleTime; at != nil {
				if at.Time.Before(last) {
					t.Fatalf("lastScheduleTime goes back to %v", at)
				}
				last = at.Time
			}
		}
		sync := func() {
			if rapid.IntRange(0, 3).Draw(t, "crash") == 0 {
				n := rapid.IntRange(1, 3).Draw(t, "write")
				w.write = func(string) bool { n--; return n > 0 }
			}
			if !w.sync() {
				w.logf("crash")
				w.write = func(string) bool { return true }
				w.sync()
			}
			w.write = func(string) bool { return true }
			check()
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case what <= 1:
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 7200).Draw(t, "seconds")) * time.Second)
			case what <= 3 && len(w.jobs) > 0:
				j := w.jobs[rapid.IntRange(0, len(w.jobs)-1).Draw(t, "job")]
				if workload.FinishedAs(j) == "" {
					w.finish(j, rapid.SampledFrom([]batchv1.JobConditionType{batchv1.JobComplete,
						batchv1.JobFailed}).Draw(t, "as"))
				}
			case what == 4:
				w.refuse = rapid.Bool().Draw(t, "refuse")
			case what == 5 && len(w.jobs) > 0:
				w.jobs = slices.Delete(w.jobs, 0, 1)
			}
			sync()
		}
	})
}

// counting counts the calls of a schedule.
type counting struct {
	Schedule
	calls int
}

func (c *counting) Next(t time.Time) time.Time {
	c.calls++
	return c.Schedule.Next(t)
}

// A user may store any time in a status, such as one from the first years of the calendar: finding the latest missed
// time does not go through all minutes since then.
func TestAncientRun(t *testing.T) {
	now := time.Date(2026, time.November, 29, 2, 0, 30, 0, time.UTC)
	for _, text := range []string{"* * * * *", "@every 1s", "0 0 29 2 *"} {
		parsed, err := cron.ParseStandard(text)
		if err != nil {
			t.Fatal(err)
		}
		s := &counting{Schedule: parsed}
		cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
		cj.Status.LastScheduleTime = &metav1.Time{Time: time.Date(2, time.January, 1, 0, 0, 0, 0, time.UTC)}
		out := Plan(Input{CronJob: cj, Now: now, Schedule: s})
		if out.Create == nil || out.Look <= 0 || s.calls > 1000 {
			t.Errorf("%s: Job %v, next look in %v, %d times computed", text, out.Create, out.Look, s.calls)
		}
	}
}
