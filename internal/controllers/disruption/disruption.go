// Package disruption maintains the status of PodDisruptionBudgets, which decides whether an
// eviction is allowed, and clears the condition DisruptionTarget of pods that are not deleted after
// all. It drives core/disruption. The controller manager runs it; it must never
// evict or delete a pod.
//
// Contract: L10.68 in docs/spec/pod-lifecycle.md, W10.15 to W10.23 in docs/spec/workloads.md.
package disruption

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/disruption"
)

// kindsAfter is the delay before discovery is repeated for the unknown kind of a controller.
const kindsAfter = 5 * time.Second

// ofPod is the prefix of the key of a pod.
const ofPod = "pod:"

// Controller maintains the status. Its key is a budget's namespace/name, or pod:namespace/name.
type Controller struct {
	*reconciler.Reconciler
	client        kubernetes.Interface
	events        record.EventRecorder
	inventory     *inventory.Inventory
	budgets, pods cache.Indexer

	mu     sync.Mutex
	chosen map[types.UID]string // budget named in the event about a pod with several budgets
}

// New returns a controller; both watches are indexed by namespace.
func New(client kubernetes.Interface, events record.EventRecorder, inv *inventory.Inventory, budgets,
	pods *source.Watch) (*Controller, error) {
	c := &Controller{client: client, events: events, inventory: inv, budgets: budgets.Objects(), pods: pods.Objects(),
		chosen: map[types.UID]string{}}
	c.Reconciler = reconciler.New("disruption", 4, c.reconcile)
	if err := reconciler.OnChange(budgets,
		func(o metav1.Object) { c.Add(o.GetNamespace() + "/" + o.GetName()) }); err != nil {
		return nil, fmt.Errorf("disruption: watch budgets: %w", err)
	}
	if err := reconciler.OnChange(pods, c.podChanged); err != nil {
		return nil, fmt.Errorf("disruption: watch pods: %w", err)
	}
	return c, nil
}

func (c *Controller) podChanged(o metav1.Object) {
	budgets, _ := c.budgets.ByIndex(cache.NamespaceIndex, o.GetNamespace())
	var names []string
	for _, obj := range budgets {
		if b, ok := obj.(*policyv1.PodDisruptionBudget); ok {
			if s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil &&
				s.Matches(labels.Set(o.GetLabels())) {
				c.Add(b.Namespace + "/" + b.Name)
				names = append(names, b.Name)
			}
		}
	}
	if pod, ok := o.(*corev1.Pod); ok {
		c.recordMultipleBudgets(pod, names)
		if left, marked := disruption.Stale(pod, time.Now()); marked {
			c.AddAfter(ofPod+pod.Namespace+"/"+pod.Name, left)
		}
	}
}

// recordMultipleBudgets records that a pod matches more than one budget, in which case it cannot be evicted
// (L10.68): once, until that changes.
func (c *Controller) recordMultipleBudgets(pod *corev1.Pod, budgets []string) {
	chosen := ""
	if _, there, _ := c.pods.Get(pod); there && len(budgets) > 1 {
		chosen = slices.Min(budgets)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case chosen == "":
		delete(c.chosen, pod.UID)
	case c.chosen[pod.UID] != chosen:
		c.chosen[pod.UID] = chosen
		c.events.Eventf(pod, corev1.EventTypeWarning, "MultiplePodDisruptionBudgets",
			"Pod %q/%q matches multiple PodDisruptionBudgets.  Chose %q arbitrarily.", pod.Namespace, pod.Name, chosen)
	}
}

// recordEvents records events about a budget whose new status is stored (L10.68).
func (c *Controller) recordEvents(in disruption.Input, problem error) {
	if len(in.Pods) == 0 {
		c.events.Event(in.Budget, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	if problem != nil {
		c.events.Eventf(in.Budget, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
			"Failed to calculate the number of expected pods: %v", problem)
		return
	}
	if disruption.NeedsScale(in.Budget) &&
		slices.ContainsFunc(in.Pods, func(p *corev1.Pod) bool { return metav1.GetControllerOf(p) == nil }) {
		c.events.Eventf(in.Budget, corev1.EventTypeWarning, "UnmanagedPods",
			"Pods selected by this PodDisruptionBudget (selector: %v) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, "+
				"which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
			in.Budget.Spec.Selector)
	}
	for _, p := range disruption.Overdue(in) {
		c.events.Eventf(p, corev1.EventTypeWarning, "NotDeleted",
			"Pod was expected by PDB %s/%s to be deleted but it wasn't", in.Budget.Namespace, in.Budget.Name)
	}
}

// clear sets a stale condition DisruptionTarget to False (W10.21).
func (c *Controller) clear(ctx context.Context, key string) (time.Duration, error) {
	obj, exists, _ := c.pods.GetByKey(key)
	pod, ok := obj.(*corev1.Pod)
	if !exists || !ok {
		return 0, nil
	}
	left, marked := disruption.Stale(pod, time.Now())
	if !marked || left > 0 {
		return left, nil
	}
	patch, err := json.Marshal(map[string]any{
		// With the version that was read, because the pod may be deleted by now.
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": corev1.DisruptionTarget, "status": corev1.ConditionFalse, "reason": nil, "message": nil,
			"lastTransitionTime": metav1.Now(), "observedGeneration": pod.Generation,
		}}},
	})
	if err != nil {
		return 0, fmt.Errorf("encode the status of pod %s: %w", key, err)
	}
	_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	err = confirm.Overtaken(ctx, pod, err, confirm.By(c.client.CoreV1().Pods(pod.Namespace).Get, pod.Name))
	if err == nil {
		return 0, nil
	}
	return 0, fmt.Errorf("clear the condition %s of pod %s: %w", corev1.DisruptionTarget, key, err)
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if pod, ok := strings.CutPrefix(key, ofPod); ok {
		return c.clear(ctx, pod)
	}
	obj, exists, _ := c.budgets.GetByKey(key)
	b, ok := obj.(*policyv1.PodDisruptionBudget)
	if !exists || !ok {
		return 0, nil
	}
	changed := b.DeepCopy()
	in := disruption.Input{Now: time.Now(), Budget: b, Pods: c.selected(b)}
	again, err := time.Duration(0), error(nil)
	if disruption.NeedsScale(b) {
		select {
		case <-c.inventory.Synced():
		default:
			return time.Second, nil // discovery is not complete yet; the stored status stays valid
		}
		in.Scale, err = c.scale(ctx, b.Namespace, in.Pods)
	}
	if err == nil {
		changed.Status, again, err = disruption.Decide(in)
	}
	problem := err
	if err != nil {
		// The number of allowed disruptions is unknown, so none is allowed.
		changed.Status.ObservedGeneration, changed.Status.DisruptionsAllowed = b.Generation, 0
		meta.SetStatusCondition(&changed.Status.Conditions,
			metav1.Condition{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
				Reason: policyv1.SyncFailedReason, Message: err.Error(), ObservedGeneration: b.Generation})
		again = kindsAfter
	} else {
		disruption.Conclude(changed)
	}
	if equality.Semantic.DeepEqual(changed.Status, b.Status) {
		return again, nil
	}
	_, err = c.client.PolicyV1().PodDisruptionBudgets(b.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err == nil {
		c.recordEvents(in, problem)
	}
	err = confirm.Overtaken(ctx, b, err, confirm.By(c.client.PolicyV1().PodDisruptionBudgets(b.Namespace).Get, b.Name))
	if err == nil {
		return again, nil
	}
	return 0, fmt.Errorf("update the status of budget %s: %w", key, err)
}

// selected returns the pods of a budget; one without a selector has none.
func (c *Controller) selected(b *policyv1.PodDisruptionBudget) []*corev1.Pod {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return nil // validation rejects invalid selectors
	}
	objects, _ := c.pods.ByIndex(cache.NamespaceIndex, b.Namespace)
	var out []*corev1.Pod
	for _, obj := range objects {
		if p, ok := obj.(*corev1.Pod); ok && selector.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out
}

// scale sums the replicas of the controllers of these pods. Pods without a controller do not count.
func (c *Controller) scale(ctx context.Context, namespace string, pods []*corev1.Pod) (int32, error) {
	sum, seen := int32(0), map[types.UID]bool{}
	for _, p := range pods {
		owner := metav1.GetControllerOf(p)
		if owner == nil || seen[owner.UID] {
			continue
		}
		seen[owner.UID] = true
		top, err := c.scaleOwner(ctx, namespace, owner)
		if err != nil {
			return 0, err
		}
		if top == nil || top != owner && seen[top.UID] {
			continue
		}
		seen[top.UID] = true
		n, err := c.replicas(ctx, namespace, top)
		if err != nil {
			return 0, err
		}
		if n < 0 {
			return 0, fmt.Errorf("the scale of %s %s/%s has %d replicas", top.Kind, namespace, top.Name, n)
		}
		sum = plus(sum, n)
	}
	return sum, nil
}

// plus adds two numbers that are not negative. Scales may have any size: a sum that wraps around would allow to evict
// every pod.
func plus(a, b int32) int32 { return a + min(b, math.MaxInt32-a) }

// scaleOwner returns the object that sets the number of pods: the Deployment of a ReplicaSet.
func (c *Controller) scaleOwner(ctx context.Context, namespace string,
	owner *metav1.OwnerReference) (*metav1.OwnerReference, error) {
	if schema.FromAPIVersionAndKind(owner.APIVersion,
		owner.Kind).GroupKind() != appsv1.SchemeGroupVersion.WithKind("ReplicaSet").GroupKind() {
		return owner, nil
	}
	rs, err := c.client.AppsV1().ReplicaSets(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && rs.UID != owner.UID {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get replica set %s/%s: %w", namespace, owner.Name, err)
	}
	if d := metav1.GetControllerOf(rs); d != nil {
		return d, nil
	}
	return owner, nil
}

// replicas reads the scale subresource of a controller.
func (c *Controller) replicas(ctx context.Context, namespace string, owner *metav1.OwnerReference) (int32, error) {
	kind, ok := c.inventory.Resolve(schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind))
	if !ok {
		return 0, fmt.Errorf("the kind %s of %s is unknown", owner.Kind, owner.APIVersion)
	}
	api := c.client.CoreV1().RESTClient()
	var s autoscalingv1.Scale
	err := kind.Request(api.Get(), namespace, owner.Name, "scale").Do(ctx).Into(&s)
	switch {
	case err == nil && s.UID == owner.UID:
		return s.Spec.Replicas, nil
	case err != nil && !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("get the scale of %s %s/%s: %w", kind.Resource, namespace, owner.Name, err)
	case err == nil:
		return 0, nil // another object with the same name
	}
	if _, gone := kind.Request(api.Get(), namespace, owner.Name).DoRaw(ctx); apierrors.IsNotFound(gone) {
		return 0, nil
	}
	return 0, fmt.Errorf("%s does not implement the scale subresource", kind.GroupVersionResource.GroupResource())
}
