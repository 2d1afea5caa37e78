// Package job runs Jobs: it drives core/workload/job. The controller manager runs it; it must never
// make these decisions itself.
//
// A turn does one step of the plan. The next turn starts when the watches show the writes of this
// one (freshness.Tracker), so that no plan is based on older state, and each pod is counted once
// even if its events are late, repeated or lost.
//
// Contract: docs/spec/workloads.md.
package job

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/children"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
	"carob/internal/core/workload/job"
)

// batch is the time for which events of pods are batched, so that pods that end together need one
// status update. W5.20 has a second.
const batch = 20 * time.Millisecond

// workers is the number of Jobs that are processed in parallel, parallel the number of parallel
// calls of one turn.
const (
	workers  = 8
	parallel = 16
)

// Controller drives Jobs. Its key is a Job's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	keeper     *children.Keeper
	jobs, pods *source.Watch
	orphans    *reconciler.Reconciler // pods with the finalizer whose Job does not count them; by namespace/name

	mu       sync.Mutex
	backoffs map[string]backoff // by key
}

type backoff struct {
	uid types.UID
	job.Backoff
}

// New returns a controller; both watches are indexed ByController.
func New(client kubernetes.Interface, events record.EventRecorder, jobs, pods *source.Watch) (*Controller, error) {
	c := &Controller{jobs: jobs, pods: pods, backoffs: map[string]backoff{}}
	c.Reconciler = reconciler.New("job", workers, c.reconcile)
	c.orphans = reconciler.New("job_orphan_pod", workers, c.letGo)
	fresh, err := freshness.New(c.Add, jobs, pods)
	if err != nil {
		return nil, fmt.Errorf("job: %w", err)
	}
	c.keeper = &children.Keeper{Client: client, Events: events, Fresh: fresh, Pods: pods}
	later := func(key string) { c.AddAfter(key, batch) }
	if err := children.OnChildren(pods, jobs, "Job", selects, later); err != nil {
		return nil, fmt.Errorf("job: watch pods: %w", err)
	}
	if err := pods.OnChange(c.podChanged); err != nil {
		return nil, fmt.Errorf("job: watch pods: %w", err)
	}
	if err := jobs.OnChange(c.jobChanged); err != nil {
		return nil, fmt.Errorf("job: watch jobs: %w", err)
	}
	return c, nil
}

// Run drives Jobs until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { c.orphans.Run(ctx) })
	c.Reconciler.Run(ctx)
	both.Wait()
}

func selects(owner metav1.Object, l labels.Set) bool {
	j, ok := owner.(*batchv1.Job)
	return ok && j.DeletionTimestamp == nil && !job.Finished(j) && children.Selects(j.Spec.Selector, l)
}

func (c *Controller) jobChanged(before, after metav1.Object) {
	if after == nil {
		// Its pods are no longer counted (W5.34).
		for _, p := range source.Controlled[*corev1.Pod](c.pods, before.GetUID()) {
			if job.Tracked(p) {
				c.orphans.Add(p.Namespace + "/" + p.Name)
			}
		}
		c.Add(before.GetNamespace() + "/" + before.GetName())
		return
	}
	if j, ok := after.(*batchv1.Job); ok && before == nil && job.Foreign(j) {
		metrics.JobsElsewhere.WithLabelValues(*j.Spec.ManagedBy).Inc()
	}
	c.Add(after.GetNamespace() + "/" + after.GetName())
}

// podChanged queues pods whose finalizer would stay forever.
func (c *Controller) podChanged(before, after metav1.Object) {
	b, _ := before.(*corev1.Pod)
	a, _ := after.(*corev1.Pod)
	tracked(b, a)
	if p, ok := after.(*corev1.Pod); ok && job.Tracked(p) && c.orphaned(p) {
		c.orphans.Add(p.Namespace + "/" + p.Name)
	}
}

// orphaned reports whether no Job in the watch manages a pod.
func (c *Controller) orphaned(p *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil {
		return true
	}
	if ref.Kind != "Job" || schema.FromAPIVersionAndKind(ref.APIVersion, "").Group != batchv1.GroupName {
		return false // of another kind: not this controller's finalizer
	}
	j := source.Get[*batchv1.Job](c.jobs, p.Namespace+"/"+ref.Name)
	return j == nil || j.UID != ref.UID
}

// letGo removes the finalizer of a pod without a Job that counts it (W5.34).
func (c *Controller) letGo(ctx context.Context, key string) (time.Duration, error) {
	p := source.Get[*corev1.Pod](c.pods, key)
	if p == nil || !job.Tracked(p) || !c.orphaned(p) {
		return 0, nil
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		// The watch of Jobs may lag behind that of pods.
		j, err := c.keeper.Client.BatchV1().Jobs(p.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case err == nil && j.UID == ref.UID:
			return time.Second, nil
		case err != nil && !apierrors.IsNotFound(err):
			return 0, fmt.Errorf("read the Job of pod %s: %w", key, err)
		}
	}
	return 0, c.untrack(ctx, "", p)
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.keeper.Fresh.Fresh(key) {
		metrics.JobSkips.WithLabelValues("batch", "jobs").Inc()
		return 0, nil // queued when it is
	}
	j := source.Get[*batchv1.Job](c.jobs, key)
	if j == nil || job.Foreign(j) {
		c.forget(key)
		return 0, nil
	}
	began, planned := time.Now(), job.Output{}
	wait, err := c.sync(ctx, key, j, &planned)
	synced(j, &planned, began, err)
	return wait, err
}

// sync handles one Job; planned returns the decision.
func (c *Controller) sync(ctx context.Context, key string, j *batchv1.Job, planned *job.Output) (time.Duration, error) {
	owner := children.Owner{Owner: workload.Owner{Object: j, Kind: batchv1.SchemeGroupVersion.WithKind("Job")},
		Runtime: j, Key: key}
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && j.Spec.Selector != nil {
		owner.Counts = children.Selected(s)
	}
	pods, err := c.claim(ctx, owner, j)
	if err != nil {
		return 0, err
	}
	in := job.Input{Job: j, Pods: pods, Now: time.Now(), Backoff: c.backoff(key, j.UID)}
	out := job.Plan(in)
	*planned = out
	c.keepBackoff(key, j, out.Backoff)
	failed := errors.Join(c.makePods(ctx, owner, &in, out.Create), c.deletePods(ctx, owner, out.Delete), out.Problem)
	if failed != nil {
		if children.NamespaceEnds(failed) {
			failed = nil // W0.40
		}
		in.Hold = true
		out = job.Plan(in)
	}
	if err := c.store(ctx, owner, j, &out); err != nil {
		err = c.keeper.Behind(ctx, key, c.jobs, j, err,
			confirm.By(c.keeper.Client.BatchV1().Jobs(j.Namespace).Get, j.Name))
		return 0, errors.Join(failed, err) // without err: a newer version is stored, whose event queues the key
	}
	if err := c.each(out.Untrack, func(p *corev1.Pod) error { return c.untrack(ctx, key, p) }); err != nil {
		return 0, errors.Join(failed, err)
	}
	return out.Look, failed
}

// claim adopts and releases pods, and returns those of the Job.
func (c *Controller) claim(ctx context.Context, owner children.Owner, j *batchv1.Job) ([]*corev1.Pod, error) {
	if job.Finished(j) {
		return source.Controlled[*corev1.Pod](c.pods, j.UID), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("read the selector of Job %s: %w", owner.Key, err)
	}
	claims := workload.Claim(owner.Owner, selector, source.Candidates[*corev1.Pod](c.pods, j), nil)
	change := c.keeper.PodChange(j.Namespace, confirm.By(c.keeper.Client.BatchV1().Jobs(j.Namespace).Get, j.Name))
	change.Finalizers = []string{job.Finalizer}
	return children.Settle(ctx, c.keeper, owner, claims, change)
}

func (c *Controller) makePods(ctx context.Context, owner children.Owner, in *job.Input, pods []*corev1.Pod) error {
	made, err := c.keeper.CreatePods(ctx, owner, len(pods), func(i int) (*corev1.Pod, error) { return pods[i], nil })
	failed := 0
	if err != nil {
		failed = 1 // in the last batch
	}
	created(in, made, failed)
	return err
}

func (c *Controller) deletePods(ctx context.Context, owner children.Owner, all []job.Deletion) error {
	byPod := make(map[*corev1.Pod]job.Deletion, len(all))
	pods := make([]*corev1.Pod, 0, len(all))
	for _, d := range all {
		byPod[d.Pod] = d
		pods = append(pods, d.Pod)
	}
	return c.each(pods, func(p *corev1.Pod) error {
		if byPod[p].Untrack {
			if err := c.untrack(ctx, owner.Key, p); err != nil {
				return err
			}
		}
		return c.keeper.DeletePod(ctx, owner, p)
	})
}

// each calls f for all pods, several in parallel, and returns one of the errors.
func (c *Controller) each(pods []*corev1.Pod, f func(*corev1.Pod) error) error {
	errs := make([]error, len(pods))
	room := make(chan struct{}, parallel)
	var all sync.WaitGroup
	for i, p := range pods {
		room <- struct{}{}
		all.Go(func() {
			errs[i] = f(p)
			<-room
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// noFinalizer removes only this finalizer from the pod with a UID.
const noFinalizer = `{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`

// untrack removes a pod's finalizer; a deleted pod no longer has it.
func (c *Controller) untrack(ctx context.Context, key string, p *corev1.Pod) error {
	got, err := c.keeper.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType,
		fmt.Appendf(nil, noFinalizer, p.UID, job.Finalizer), metav1.PatchOptions{})
	written := err == nil
	err = confirm.Removed(ctx, p.UID, err, children.PodNamed(c.keeper.Client, p.Namespace, p.Name))
	switch {
	case err != nil:
		return fmt.Errorf("removing tracking finalizer of pod %s/%s: %w", p.Namespace, p.Name, err)
	case key == "":
	case written:
		c.keeper.Fresh.Wrote(key, c.pods, got)
	default:
		c.keeper.Fresh.Deleted(key, c.pods, p)
	}
	return nil
}

// store writes a status and records the events that belong to it.
func (c *Controller) store(ctx context.Context, owner children.Owner, j *batchv1.Job, out *job.Output) error {
	if out.Status != nil {
		next := j.DeepCopy()
		next.Status = *out.Status
		stored, err := c.keeper.Client.BatchV1().Jobs(j.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("update the status of Job %s: %w", owner.Key, err)
		}
		c.keeper.Fresh.Wrote(owner.Key, c.jobs, stored)
		counted(j, out.Status)
	}
	for _, e := range out.Events {
		c.keeper.Events.Event(j, e.Type, e.Reason, e.Message)
	}
	return nil
}

func (c *Controller) backoff(key string, uid types.UID) job.Backoff {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.backoffs[key]; m.uid == uid {
		return m.Backoff
	}
	return job.Backoff{}
}

func (c *Controller) keepBackoff(key string, j *batchv1.Job, m job.Backoff) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if job.Finished(j) {
		delete(c.backoffs, key)
		return
	}
	c.backoffs[key] = backoff{j.UID, m}
}

func (c *Controller) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.backoffs, key)
	c.keeper.Forget(key)
}
