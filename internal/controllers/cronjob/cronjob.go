// Package cronjob starts the Jobs of CronJobs: it drives core/workload/cronjob. The
// controller manager runs it; it must never decide when a Job is due.
//
// Contract: docs/spec/workloads.md.
package cronjob

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // hosts without time zones

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/children"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/workload/cronjob"
)

// Controller drives CronJobs. Its key is a CronJob's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	client         kubernetes.Interface
	events         record.EventRecorder
	cronJobs, jobs *source.Watch
	fresh          *freshness.Tracker
	now            func() time.Time

	// unclear holds the keys whose status may have been stored although the request failed. Before
	// the next plan for them, the stored one is read: the watch of Jobs may be ahead and show the
	// deletion of a Job that only that status lists.
	unclear reconciler.Keys

	mu sync.Mutex
	// unsure holds the keys, and the names of Jobs that may have been created although the request
	// failed. Before the next plan for them, the Job is requested: the watch may show it late, and
	// until then a Job that Forbid and Replace count would be missing.
	unsure map[string]string
}

// New returns a controller; jobs are indexed ByController.
func New(client kubernetes.Interface, events record.EventRecorder, cronJobs, jobs *source.Watch) (*Controller, error) {
	c := &Controller{client: client, events: events, cronJobs: cronJobs, jobs: jobs, now: time.Now,
		unsure: map[string]string{}}
	c.Reconciler = reconciler.New("cronjob", 5, c.reconcile)
	var err error
	if c.fresh, err = freshness.New(c.Add, cronJobs, jobs); err != nil {
		return nil, fmt.Errorf("cronjob: %w", err)
	}
	if err := cronJobs.OnChange(c.changed); err != nil {
		return nil, fmt.Errorf("cronjob: watch cron jobs: %w", err)
	}
	err = jobs.OnChange(func(before, after metav1.Object) {
		for _, o := range []metav1.Object{before, after} {
			if o == nil {
				continue
			}
			if ref := metav1.GetControllerOfNoCopy(o); ref != nil && ref.Kind == "CronJob" {
				c.Add(o.GetNamespace() + "/" + ref.Name)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cronjob: watch jobs: %w", err)
	}
	return c, nil
}

// changed queues a CronJob. A new schedule only affects the next times: its times in the past are
// not made up (W6.10).
func (c *Controller) changed(before, after metav1.Object) {
	now, ok := after.(*batchv1.CronJob)
	if !ok {
		return
	}
	key := now.Namespace + "/" + now.Name
	old, ok := before.(*batchv1.CronJob)
	if !ok || old.Spec.Schedule == now.Spec.Schedule && zone(old) == zone(now) {
		c.Add(key)
		return
	}
	in := cronjob.Input{CronJob: now}
	if read(&in); in.Schedule == nil {
		c.events.Eventf(now, corev1.EventTypeWarning, "UnParseableCronJobSchedule",
			"unparseable schedule for cronjob: %s", now.Spec.Schedule)
		return
	}
	if next := cronjob.Next(now, in.Schedule, c.now()); next > 0 {
		c.AddAfter(key, next)
	}
}

// ClockSet reconciles all CronJobs, because the wall clock was set or the machine was suspended: the waits for their
// next times are measured by another clock.
func (c *Controller) ClockSet() {
	for _, key := range c.cronJobs.Objects().ListKeys() {
		c.Add(key)
	}
}

func zone(cj *batchv1.CronJob) string {
	if cj.Spec.TimeZone == nil {
		return ""
	}
	return *cj.Spec.TimeZone
}

// read parses the schedule and the time zone into the input.
func read(in *cronjob.Input) {
	text := in.CronJob.Spec.Schedule
	if z := in.CronJob.Spec.TimeZone; z != nil {
		if in.Zone, in.ZoneErr = time.LoadLocation(*z); in.ZoneErr == nil && !strings.Contains(text, "TZ") {
			text = "TZ=" + *z + " " + text
		}
	}
	defer func() {
		// The library panics on some schedules that validation no longer accepts.
		if p := recover(); p != nil {
			in.Schedule, in.ScheduleErr = nil, fmt.Errorf("invalid schedule format: %v", p)
		}
	}()
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		in.ScheduleErr = err
		return
	}
	in.Schedule = schedule
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.fresh.Fresh(key) {
		return 0, nil // queued when it is
	}
	cj := source.Get[*batchv1.CronJob](c.cronJobs, key)
	if cj == nil {
		c.unclear.Put(key, false)
		c.setUnsure(key, "")
		return 0, nil
	}
	if behind, err := c.lookForJob(ctx, key, cj); behind || err != nil {
		return 0, err
	}
	if c.unclear.Has(key) {
		stored, err := c.client.BatchV1().CronJobs(cj.Namespace).Get(ctx, cj.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			c.fresh.Deleted(key, c.cronJobs, cj)
		case err != nil:
			return 0, fmt.Errorf("check whether the status of CronJob %s is stored: %w", key, err)
		default:
			c.fresh.Wrote(key, c.cronJobs, stored)
		}
		c.unclear.Put(key, false)
		if !c.fresh.Fresh(key) {
			return 0, nil
		}
		cj = source.Get[*batchv1.CronJob](c.cronJobs, key)
		if cj == nil {
			return 0, nil
		}
	}
	t := turn{Controller: c, key: key, in: cronjob.Input{
		CronJob: cj, Jobs: source.Controlled[*batchv1.Job](c.jobs, cj.UID), Deleted: map[types.UID]bool{},
		Foreign: map[string]bool{}}}
	read(&t.in)
	for {
		t.in.Now = t.now()
		out := cronjob.Plan(t.in)
		if wait, over, err := t.act(ctx, out); over || err != nil {
			return wait, err
		}
	}
}

// lookForJob reads from the API a Job whose creation had no response. behind: the Job exists, but
// the watch does not show it yet; the key is queued when it does.
func (c *Controller) lookForJob(ctx context.Context, key string, cj *batchv1.CronJob) (behind bool, err error) {
	c.mu.Lock()
	name := c.unsure[key]
	c.mu.Unlock()
	if name == "" {
		return false, nil
	}
	there, err := c.client.BatchV1().Jobs(cj.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		c.fresh.Wrote(key, c.jobs, there)
	case !apierrors.IsNotFound(err):
		return false, fmt.Errorf("check whether Job %s/%s was created: %w", cj.Namespace, name, err)
	}
	c.setUnsure(key, "")
	return !c.fresh.Fresh(key), nil
}

func (c *Controller) setUnsure(key, job string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if job != "" {
		c.unsure[key] = job
	} else {
		delete(c.unsure, key)
	}
}

// turn does all actions that are possible now, and applies their effects to the input.
type turn struct {
	*Controller
	key string
	in  cronjob.Input
}

// act carries out the plan. over ends the turn.
func (t *turn) act(ctx context.Context, out cronjob.Output) (wait time.Duration, over bool, err error) {
	if out.Status != nil {
		next := t.in.CronJob.DeepCopy()
		next.Status = *out.Status
		stored, err := t.client.BatchV1().CronJobs(next.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		if err != nil {
			keeper := children.Keeper{Fresh: t.fresh}
			err = keeper.Behind(ctx, t.key, t.cronJobs, t.in.CronJob, err,
				confirm.By(t.client.BatchV1().CronJobs(next.Namespace).Get, next.Name))
			if err == nil {
				return 0, true, nil // a newer version is stored, whose event queues the key
			}
			t.unclear.Put(t.key, !children.Refused(err))
			return 0, true, fmt.Errorf("update the status of CronJob %s: %w", t.key, err)
		}
		t.fresh.Wrote(t.key, t.cronJobs, stored)
		t.in.CronJob = stored
	}
	for _, e := range out.Events {
		t.events.Event(t.in.CronJob, e.Type, e.Reason, e.Message)
	}
	for _, j := range out.History {
		if t.remove(ctx, j.Name, j.UID) != nil {
			t.in.Keep = true // later; the event reports why
		}
	}
	for _, r := range out.Replace {
		if err := t.remove(ctx, r.Name, r.UID); err != nil {
			return 0, true, fmt.Errorf("could not replace job %s/%s: %w", r.Namespace, r.Name, err)
		}
	}
	if out.Create != nil {
		if over, err := t.create(ctx, out.Create); over || err != nil {
			return 0, true, err
		}
	}
	return out.Look, out.Done(), nil
}

// remove deletes a Job with its pods (W6.17, W6.26).
func (t *turn) remove(ctx context.Context, name string, uid types.UID) error {
	namespace := t.in.CronJob.Namespace
	err := t.client.BatchV1().Jobs(namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationBackground),
		Preconditions:     metav1.NewUIDPreconditions(string(uid))})
	deleted, keeper := err == nil, children.Keeper{Fresh: t.fresh}
	err = keeper.Gone(ctx, t.key, t.jobs, &metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}, err,
		confirm.By(t.client.BatchV1().Jobs(namespace).Get, name))
	if err != nil {
		t.events.Eventf(t.in.CronJob, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return err
	}
	if deleted {
		t.events.Eventf(t.in.CronJob, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", name)
	}
	t.in.Deleted[uid] = true
	return nil
}

// create starts a Job. over ends the turn, and an expected event starts the next one.
func (t *turn) create(ctx context.Context, j *batchv1.Job) (over bool, err error) {
	made, err := t.client.BatchV1().Jobs(j.Namespace).Create(ctx, j, metav1.CreateOptions{})
	switch {
	case children.NamespaceEnds(err):
		return true, nil
	case apierrors.IsAlreadyExists(err):
		there, err := t.client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, nil // deleted meanwhile
		case err != nil:
			return true, fmt.Errorf("read Job %s/%s: %w", j.Namespace, j.Name, err)
		case metav1.IsControlledBy(there, t.in.CronJob):
			t.fresh.Wrote(t.key, t.jobs, there)
			t.in.Jobs = append(t.in.Jobs, there)
		default:
			t.in.Foreign[j.Name] = true // W6.23
		}
		return false, nil
	case err != nil:
		if !children.Refused(err) {
			t.setUnsure(t.key, j.Name)
		}
		t.events.Eventf(t.in.CronJob, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return true, fmt.Errorf("create a Job of CronJob %s: %w", t.key, err)
	}
	t.fresh.Wrote(t.key, t.jobs, made)
	if at, err := time.Parse(time.RFC3339, made.Annotations[batchv1.CronJobScheduledTimestampAnnotation]); err == nil {
		metrics.CronJobSkew.WithLabelValues().Observe(made.CreationTimestamp.Sub(at).Seconds())
	}
	t.events.Eventf(t.in.CronJob, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", made.Name)
	t.in.Jobs = append(t.in.Jobs, made)
	return false, nil
}
