// Package ttlafterfinished deletes finished Jobs after their ttlSecondsAfterFinished (W10.A). The
// controller manager runs it; it must never delete anything else.
//
// Contract: docs/spec/workloads.md.
package ttlafterfinished

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"carob/internal/base/confirm"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/workload/job"
)

// Controller deletes Jobs. Its key is a Job's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	client kubernetes.Interface
	jobs   *source.Watch
}

// New returns a controller.
func New(client kubernetes.Interface, jobs *source.Watch) (*Controller, error) {
	c := &Controller{client: client, jobs: jobs}
	c.Reconciler = reconciler.New("ttl_jobs_to_delete", 4, c.reconcile)
	err := jobs.OnChange(func(_, after metav1.Object) {
		if j, ok := after.(*batchv1.Job); ok && j.Spec.TTLSecondsAfterFinished != nil && job.Finished(j) {
			c.Add(j.Namespace + "/" + j.Name)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("ttl after finished: watch jobs: %w", err)
	}
	return c, nil
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	j := source.Get[*batchv1.Job](c.jobs, key)
	if j == nil {
		return 0, nil
	}
	if wait, due, err := left(j); err != nil || !due {
		return wait, err
	}
	// The watch may not show yet that the TTL was just raised (W10.1).
	j, err := c.client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read Job %s: %w", key, err)
	}
	if wait, due, err := left(j); err != nil || !due {
		return wait, err
	}
	options := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground),
		Preconditions: metav1.NewUIDPreconditions(string(j.UID))}
	if err = c.client.BatchV1().Jobs(j.Namespace).Delete(ctx, j.Name, options); err == nil {
		if at, ok, err := job.Expires(j); ok && err == nil {
			metrics.JobDeletionSeconds.WithLabelValues().Observe(time.Since(at).Seconds())
		}
	}
	err = confirm.Ended(ctx, j.UID, err, confirm.By(c.client.BatchV1().Jobs(j.Namespace).Get, j.Name))
	if err != nil {
		return 0, fmt.Errorf("delete Job %s, whose time to live is over: %w", key, err)
	}
	return 0, nil
}

// left returns how long a Job has still to wait, and whether it is due.
func left(j *batchv1.Job) (wait time.Duration, due bool, err error) {
	at, ok, err := job.Expires(j)
	if err != nil || !ok {
		return 0, false, err
	}
	wait = time.Until(at)
	return max(wait, 0), wait <= 0, nil
}
