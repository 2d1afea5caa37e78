// Package unusedclaims keeps the condition Unused of PersistentVolumeClaims. core/volume decides; the controller
// manager runs it. It must never change anything else of a claim.
//
// Contract: S7.10 in docs/spec/storage-and-node.md.
package unusedclaims

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"carob/internal/base/confirm"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/podclaims"
	"carob/internal/core/volume"
)

// settle delays the write of a condition: the start of a pod does not wait for it, and a claim whose pod is replaced
// keeps its condition.
const settle = 100 * time.Millisecond

// recheck is the time between two looks at a claim that is used by a pod which the watch does not show.
const recheck = time.Second

// Controller writes the condition. Its key is a claim's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	client       kubernetes.Interface
	pods, claims *source.Watch

	mu    sync.Mutex
	users map[string]map[string]bool // names of the pods that have a claim as a volume, by claim
}

// New returns a controller.
func New(client kubernetes.Interface, pods, claims *source.Watch) (*Controller, error) {
	c := &Controller{client: client, pods: pods, claims: claims, users: map[string]map[string]bool{}}
	c.Reconciler = reconciler.New("unused_claims", 2, c.reconcile)
	err := claims.OnChange(func(_, after metav1.Object) {
		// Each change: the write of a condition may be shown only after the pod that made it wrong.
		if claim, ok := after.(*corev1.PersistentVolumeClaim); ok && volume.HasUnused(claim) {
			c.AddAfter(claim.Namespace+"/"+claim.Name, settle)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("unusedclaims: watch claims: %w", err)
	}
	err = pods.OnChange(func(before, after metav1.Object) {
		was, _ := before.(*corev1.Pod)
		is, _ := after.(*corev1.Pod)
		if was != nil && is != nil && was.UID == is.UID && volume.Terminated(was) == volume.Terminated(is) {
			return // the volumes of a pod never change
		}
		c.podChanged(was, false)
		c.podChanged(is, true)
	})
	if err != nil {
		return nil, fmt.Errorf("unusedclaims: watch pods: %w", err)
	}
	return c, nil
}

// podChanged notes a pod, or that it is gone, and queues its claims; nil is no pod.
func (c *Controller) podChanged(pod *corev1.Pod, exists bool) {
	if pod == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range pod.Spec.Volumes {
		name, _ := volume.ClaimOf(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		key := pod.Namespace + "/" + name
		switch {
		case !exists:
			if delete(c.users[key], pod.Name); len(c.users[key]) == 0 {
				delete(c.users, key)
			}
		case c.users[key] == nil:
			c.users[key] = map[string]bool{pod.Name: true}
		default:
			c.users[key][pod.Name] = true
		}
		c.AddAfter(key, settle)
	}
}

// used reports whether a pod that the watch shows uses a claim.
func (c *Controller) used(key string, claim *corev1.PersistentVolumeClaim) bool {
	c.mu.Lock()
	names := slices.Collect(maps.Keys(c.users[key]))
	c.mu.Unlock()
	return slices.ContainsFunc(names, func(name string) bool {
		pod := source.Get[*corev1.Pod](c.pods, claim.Namespace+"/"+name)
		return pod != nil && uses(pod, claim)
	})
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	claim := source.Get[*corev1.PersistentVolumeClaim](c.claims, key)
	if claim == nil || !volume.HasUnused(claim) {
		return 0, nil
	}
	namespace, used, again := claim.Namespace, c.used(key, claim), time.Duration(0)
	changed := volume.Unused(claim, used, metav1.Now())
	if changed != nil && !used { // the watch may not show a new pod yet
		list, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0, fmt.Errorf("list the pods that may use claim %s: %w", key, err)
		}
		if used = slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return uses(&p, claim) }); used {
			again = recheck // the watch never shows a pod that comes and goes while it is interrupted
		}
		changed = volume.Unused(claim, used, metav1.Now())
	}
	if changed == nil {
		return again, nil
	}
	claims := c.client.CoreV1().PersistentVolumeClaims(namespace)
	_, err := claims.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	// Of a newer version, the watch shows the change.
	if err = confirm.Overtaken(ctx, claim, err, confirm.By(claims.Get, claim.Name)); err != nil {
		return 0, fmt.Errorf("write the condition Unused of claim %s: %w", key, err)
	}
	return again, nil
}

// uses reports whether a pod uses a claim, scheduled or not, until its containers have ended.
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return !volume.Terminated(pod) && podclaims.UsesVolumeClaim(pod, claim)
}
