package cronjob

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// begin is a Thursday, 12:00:20.
var begin = time.Date(2026, 1, 1, 12, 0, 20, 0, time.UTC)

// world is an API server with one CronJob and its Jobs, and a driver, moved by hand.
type world struct {
	now    time.Time
	cj     *batchv1.CronJob
	jobs   []*batchv1.Job
	next   time.Time
	log    []string
	made   int
	refuse bool
	write  func(what string) bool // false is a crash right before a write
	down   func()                 // events between a crash and the next start
	names  map[string]int         // how often each Job was created
	others map[string]bool        // names of Jobs with other owners
}

func newWorld() *world {
	return &world{now: begin, write: func(string) bool { return true }, names: map[string]int{},
		others: map[string]bool{}}
}

func (w *world) logf(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) apply(manifest string) error {
	cj := &batchv1.CronJob{}
	if err := yaml.UnmarshalStrict([]byte(manifest), &cj.Spec); err != nil {
		return err
	}
	cj.Name, cj.Namespace, cj.UID, cj.CreationTimestamp = "c", "ns", "cj-uid", metav1.NewTime(w.now)
	if cj.Spec.ConcurrencyPolicy == "" {
		cj.Spec.ConcurrencyPolicy = batchv1.AllowConcurrent
	}
	if w.cj != nil {
		cj.Status, cj.CreationTimestamp = w.cj.Status, w.cj.CreationTimestamp
	}
	w.cj = cj
	return nil
}

func (w *world) plan(deleted map[types.UID]bool, foreign map[string]bool) Output {
	in := Input{CronJob: w.cj.DeepCopy(), Now: w.now, Deleted: deleted, Foreign: foreign}
	for _, j := range w.jobs {
		in.Jobs = append(in.Jobs, j.DeepCopy())
	}
	text := w.cj.Spec.Schedule
	if z := w.cj.Spec.TimeZone; z != nil {
		if in.Zone, in.ZoneErr = time.LoadLocation(*z); in.ZoneErr == nil {
			text = "TZ=" + *z + " " + text
		}
	} else if !strings.Contains(text, "TZ") {
		text = "TZ=UTC " + text
	}
	in.Schedule, in.ScheduleErr = cron.ParseStandard(text)
	return Plan(in)
}

// sync acts like the driver. It returns false after a crash.
func (w *world) sync() bool {
	deleted, foreign := map[types.UID]bool{}, map[string]bool{}
	for range 100 {
		out := w.plan(deleted, foreign)
		if out.Status != nil {
			if !w.write("status") {
				return false
			}
			w.cj.Status = *out.Status
			w.logf("%s", summary(&w.cj.Status))
		}
		for _, e := range out.Events {
			w.logf("event %s %s: %s", e.Type, e.Reason, e.Message)
		}
		for _, j := range out.History {
			if !w.write("delete") {
				return false
			}
			w.logf("delete %s", j.Name)
			w.remove(j.UID)
			deleted[j.UID] = true
		}
		for _, r := range out.Replace {
			if !w.write("delete") {
				return false
			}
			w.logf("delete %s", r.Name)
			w.remove(r.UID)
			deleted[r.UID] = true
		}
		if out.Create != nil {
			if !w.write("create") {
				return false
			}
			if err := w.create(out.Create); err != nil {
				w.logf("%v", err)
				if !w.others[out.Create.Name] {
					w.next = w.now.Add(time.Second)
					return true
				}
				foreign[out.Create.Name] = true
			}
		}
		if out.Done() {
			w.next = time.Time{}
			if out.Look > 0 {
				w.next = w.now.Add(out.Look)
			}
			return true
		}
	}
	panic("the plan has no end: " + strings.Join(w.log[len(w.log)-10:], "\n"))
}

func (w *world) create(j *batchv1.Job) error {
	if w.refuse {
		return errors.New("create refused")
	}
	if w.others[j.Name] || slices.ContainsFunc(w.jobs, func(o *batchv1.Job) bool { return o.Name == j.Name }) {
		return errors.New(j.Name + " exists")
	}
	w.made++
	j.UID, j.ResourceVersion = types.UID(fmt.Sprintf("u%d", w.made)), "1"
	j.Status.StartTime = new(metav1.NewTime(w.now))
	w.names[j.Name]++
	w.jobs = append(w.jobs, j)
	w.logf("create %s for %s", j.Name, j.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	return nil
}

func (w *world) remove(uid types.UID) {
	w.jobs = slices.DeleteFunc(w.jobs, func(j *batchv1.Job) bool { return j.UID == uid })
}

func (w *world) finish(j *batchv1.Job, kind batchv1.JobConditionType) {
	j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue})
	if kind == batchv1.JobComplete {
		j.Status.CompletionTime = new(metav1.NewTime(w.now))
	}
}

func (w *world) advance(by time.Duration) {
	end := w.now.Add(by)
	for !w.next.IsZero() && !w.next.After(end) {
		w.now = w.next
		w.logf("at %s", w.now.Format("15:04:05.0"))
		w.sync()
	}
	w.now = end
}

func summary(s *batchv1.CronJobStatus) string {
	var active []string
	for _, r := range s.Active {
		active = append(active, r.Name)
	}
	out := "status active=" + strings.Join(active, ",")
	if s.LastScheduleTime != nil {
		out += " lastSchedule=" + s.LastScheduleTime.UTC().Format("15:04:05")
	}
	if s.LastSuccessfulTime != nil {
		out += " lastSuccessful=" + s.LastSuccessfulTime.UTC().Format("15:04:05")
	}
	return out
}
