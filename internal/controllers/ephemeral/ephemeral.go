// Package ephemeral makes the PersistentVolumeClaims of generic ephemeral volumes. core/podclaims
// decides; the controller manager runs it. The claims are deleted with their pods (garbage
// collection); the volume binder binds them.
//
// Contract: S6 in docs/spec/storage-and-node.md.
package ephemeral

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/freshness"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/podclaims"
)

// Controller makes claims. Its key is a pod's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	client       kubernetes.Interface
	events       record.EventRecorder
	pods, claims *source.Watch
	fresh        *freshness.Tracker
}

// New returns a controller; pods is indexed by namespace.
func New(client kubernetes.Interface, events record.EventRecorder, pods, claims *source.Watch) (*Controller, error) {
	c := &Controller{client: client, events: events, pods: pods, claims: claims}
	c.Reconciler = reconciler.New("ephemeral_volume", 4, c.reconcile)
	var err error
	if c.fresh, err = freshness.New(c.Add, claims); err != nil {
		return nil, fmt.Errorf("ephemeral: %w", err)
	}
	// The volumes of a pod never change: it is processed when it is added, and when a claim is
	// deleted.
	err = pods.OnChange(func(before, after metav1.Object) {
		if pod, ok := after.(*corev1.Pod); ok && before == nil && wanted(pod) {
			c.Add(pod.Namespace + "/" + pod.Name)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("ephemeral: watch pods: %w", err)
	}
	err = claims.OnChange(func(before, after metav1.Object) {
		if after == nil {
			c.claimGone(before)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("ephemeral: watch claims: %w", err)
	}
	return c, nil
}

// wanted reports whether a pod has such volumes.
func wanted(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil && pod.DeletionTimestamp == nil {
			return true
		}
	}
	return false
}

// claimGone queues the pods that need a claim of this name.
func (c *Controller) claimGone(claim metav1.Object) {
	for _, pod := range source.Namespaced[*corev1.Pod](c.pods, claim.GetNamespace()) {
		for i := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[i]; v.Ephemeral != nil && podclaims.VolumeClaimName(pod, v) == claim.GetName() {
				c.Add(pod.Namespace + "/" + pod.Name)
			}
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.fresh.Fresh(key) {
		return 0, nil
	}
	pod := source.Get[*corev1.Pod](c.pods, key)
	if pod == nil || pod.DeletionTimestamp != nil {
		return 0, nil
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if err := c.provide(ctx, key, pod, v); err != nil {
			c.events.Eventf(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
			return 0, fmt.Errorf("pod %s, ephemeral volume %s: %w", key, v.Name, err)
		}
	}
	return 0, nil
}

// provide creates the claim of a volume unless it exists.
func (c *Controller) provide(ctx context.Context, key string, pod *corev1.Pod, v *corev1.Volume) error {
	name := podclaims.VolumeClaimName(pod, v)
	claim, err := podclaims.ForVolume(pod, v,
		source.Get[*corev1.PersistentVolumeClaim](c.claims, pod.Namespace+"/"+name))
	if claim == nil || err != nil {
		return err
	}
	claims := c.client.CoreV1().PersistentVolumeClaims(pod.Namespace)
	metrics.VolumeClaims.WithLabelValues().Inc()
	made, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// The watch has not shown it yet; or an earlier response was lost.
		if made, err = claims.Get(ctx, name, metav1.GetOptions{}); err == nil {
			_, err = podclaims.ForVolume(pod, v, made)
			return err
		}
	}
	if err != nil {
		metrics.NoClaims.WithLabelValues().Inc()
		return fmt.Errorf("create PVC %s: %w", name, err)
	}
	c.fresh.Wrote(key, c.claims, made)
	return nil
}
