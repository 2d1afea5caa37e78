// Package vpa runs VerticalPodAutoscalers: it feeds the recommender of core/workload/vpa with
// metrics from metrics.k8s.io, stores recommendations and checkpoints, and resizes and evicts pods.
// It runs only while the add-on is enabled; the manager starts and stops it. It must never decide an
// amount, or which pod changes.
//
// Goroutines: one with a pass per minute while there is an autoscaler, its watch, and for each namespace one while its
// statuses are written, one while its checkpoints are, and one while its pods are resized and evicted.
//
// Contract: docs/spec/workloads.md.
package vpa

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"carob/internal/base/confirm"
	"carob/internal/controllers/source"
	"carob/internal/core/workload/vpa"
)

// Resource is the API resource of the autoscalers.
func Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: vpa.Group, Version: vpa.Version, Resource: "verticalpodautoscalers"}
}

const (
	// gap is the minimum time between two passes: new or changed autoscalers are processed soon,
	// but together.
	gap = 5 * time.Second
	// young is how long an autoscaler without a recommendation is processed at each gap.
	young = 2 * time.Minute
	// orphansEvery is the interval at which checkpoints of deleted autoscalers are removed (W9.37).
	orphansEvery = 10 * time.Minute
)

// Config is what the controller needs.
type Config struct {
	// Recommender writes statuses and checkpoints and reads all other objects, Updater resizes and
	// evicts.
	Recommender, Updater kubernetes.Interface
	Events               record.EventRecorder // of vpa-updater
	// VPAs are the autoscalers: Watch makes them. The controller runs the watch.
	VPAs   *source.Watch
	Owners Owners
	Kinds  Kinds
	store  store // nil: the API
	usage  usageReader
	scales scales
}

// Controller drives the autoscalers. Make it with New and Run it once.
type Controller struct {
	Config
	wake chan struct{} // capacity 1
	// Each namespace's writes of a kind are made by a goroutine.
	statuses, saves, updates *lanes
	scale                    scaled

	// Used by the goroutine of the passes only.
	model   *vpa.Model
	loaded  bool                // the checkpoints have been loaded into the model
	names   map[types.UID]named // of checkpoints
	evicted map[types.UID]bool  // pods whose evictions were read
	orphans time.Time           // when orphaned checkpoints were last removed
	seen    map[types.UID]bool  // autoscalers that have a recommendation
	// resizes are those in flight, by namespace; what is in a namespace's belongs to the lane of its updates.
	resizes map[string]vpa.Resizes
}

type named map[string]string // checkpoint by container

// store reads and writes the add-on's objects.
type store interface {
	status(ctx context.Context, name vpa.Name, s *vpa.Status) error
	checkpoints(ctx context.Context) ([]vpa.Checkpoint, error)
	save(ctx context.Context, c *vpa.Checkpoint) error
	remove(ctx context.Context, c *vpa.Checkpoint) error
}

// usageReader reads the usage of the containers of a namespace.
type usageReader interface {
	usage(ctx context.Context, namespace string) ([]vpa.Sample, error)
}

// Watch makes the watch of all autoscalers.
func Watch(c dynamic.Interface) *source.Watch {
	return source.Custom(c, Resource(), func(u *unstructured.Unstructured) (metav1.Object, error) {
		v := &vpa.VerticalPodAutoscaler{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, v); err != nil {
			// It was stored without validation: it is ignored.
			v = &vpa.VerticalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(),
				UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(), CreationTimestamp: u.GetCreationTimestamp()}}
			v.Spec.Recommenders = []vpa.Recommender{{Name: "none: it cannot be read"}}
			off := vpa.ModeOff
			v.Spec.UpdatePolicy = &vpa.UpdatePolicy{UpdateMode: &off}
		}
		v.ManagedFields = nil
		return v, nil
	})
}

// New returns a controller.
func New(cfg Config) (*Controller, error) {
	register()
	c := &Controller{Config: cfg, wake: make(chan struct{}, 1), statuses: newLanes(), saves: newLanes(),
		updates: newLanes(), model: vpa.NewModel(), names: map[types.UID]named{}, resizes: map[string]vpa.Resizes{},
		evicted: map[types.UID]bool{}, seen: map[types.UID]bool{}}
	api := restAPI{cfg.Recommender}
	if c.store == nil {
		c.store = api
	}
	if c.usage == nil {
		c.usage = api
	}
	if c.scales == nil {
		c.scales = api
	}
	c.scale.known = map[vpa.Ref]scaleEntry{}
	err := cfg.VPAs.OnChange(func(before, after metav1.Object) {
		if before == nil || after != nil && before.GetGeneration() != after.GetGeneration() {
			c.poke()
		}
	})
	if err != nil {
		return nil, fmt.Errorf("vertical pod autoscalers: %w", err)
	}
	return c, nil
}

func (c *Controller) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run recommends and updates until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("vpa"))
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { c.VPAs.Run(ctx) })
	for _, l := range []*lanes{c.statuses, c.saves, c.updates} {
		defer l.all.Wait()
	}
	for _, ready := range []<-chan struct{}{c.VPAs.Synced(), c.Kinds.Synced()} {
		select {
		case <-ready:
		case <-ctx.Done():
			return
		}
	}
	idle := true
	for last := time.Now(); ctx.Err() == nil; {
		if len(c.VPAs.Objects().ListKeys()) > 0 {
			last, idle = time.Now(), false
		}
		if idle { // until there is an autoscaler
			select {
			case <-c.wake:
			case <-ctx.Done():
			}
			continue
		}
		pause := c.look(ctx)
		// The state of deleted autoscalers is removed with their checkpoints.
		if c.loaded && last.Before(c.orphans) && len(c.VPAs.Objects().ListKeys()) == 0 {
			idle, c.model = true, vpa.NewModel()
			continue
		}
		c.rest(ctx, pause)
	}
}

// rest waits for the next pass: until the time is up, or gap after an autoscaler was created or
// changed.
func (c *Controller) rest(ctx context.Context, pause time.Duration) {
	soonest, next := time.NewTimer(gap), time.NewTimer(pause)
	defer soonest.Stop()
	defer next.Stop()
	select {
	case <-soonest.C:
	case <-ctx.Done():
		return
	}
	select {
	case <-next.C:
	case <-c.wake:
	case <-ctx.Done():
	}
}

// all returns the autoscalers, copied: the status of each may be set.
func (c *Controller) all() (out []*vpa.VerticalPodAutoscaler) {
	for _, o := range c.VPAs.Objects().List() {
		if v, ok := o.(*vpa.VerticalPodAutoscaler); ok && v.DeletionTimestamp == nil {
			own := *v
			out = append(out, &own)
		}
	}
	vpaSort(out)
	return out
}

// look is one pass of the recommender and the updater. It returns when the next one is due.
func (c *Controller) look(ctx context.Context) time.Duration {
	log, took := klog.FromContext(ctx), newStopwatch(recommenderLatency)
	all, of := c.all(), c.controllers(ctx)
	targets, here := make([]vpa.Target, len(all)), map[types.UID]bool{}
	var ours []vpa.Target
	for i, v := range all {
		here[v.UID] = true
		targets[i] = vpa.Resolve(of, v)
		if v.Ours() {
			ours = append(ours, targets[i])
		}
	}
	maps.DeleteFunc(c.seen, func(uid types.UID, _ bool) bool { return !here[uid] })
	c.model.SetTargets(ours)
	took.step("LoadVPAs")
	pods, err := c.pods(ctx, targets)
	if err == nil && !c.loaded {
		err = c.load(ctx)
	}
	if err != nil {
		// Checkpoints must be loaded before anything is recommended or stored over them.
		log.Error(err, "Vertical pod autoscalers wait")
		return vpa.Pass
	}
	now := time.Now()
	var flat []*corev1.Pod
	for _, list := range pods {
		flat = append(flat, list...)
	}
	c.model.SetPods(flat, now)
	took.step("LoadPods")
	for namespace := range pods {
		samples, err := c.usage.usage(ctx, namespace)
		if err != nil {
			log.V(2).Info("No metrics of the pods", "namespace", namespace, "err", err)
		}
		for _, s := range samples {
			c.model.AddSample(s, now)
		}
	}
	c.evictions(ctx, flat, now)
	took.step("LoadMetrics")
	c.recommend(ctx, ours)
	took.step("UpdateVPAs")
	c.saveCheckpoints(ctx, ours)
	took.step("MaintainCheckpoints")
	c.model.Collect(time.Now())
	took.step("GarbageCollect")
	took.total()
	usageCount.Set(float64(c.model.Usages()))
	countVPAs(all)
	c.update(ctx, targets, pods)
	for _, t := range ours {
		if r := t.VPA.Status.Recommendation; t.Selector != nil && (r == nil || len(r.Containers) == 0) &&
			time.Since(t.VPA.CreationTimestamp.Time) < young {
			return gap
		}
	}
	return vpa.Pass
}

// pods returns the pods of the namespaces in which there are targets, by namespace.
func (c *Controller) pods(ctx context.Context, targets []vpa.Target) (map[string][]*corev1.Pod, error) {
	out := map[string][]*corev1.Pod{}
	for _, t := range targets {
		if _, there := out[t.VPA.Namespace]; there || t.Selector == nil {
			continue
		}
		list, err := c.Recommender.CoreV1().Pods(t.VPA.Namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, fmt.Errorf("list the pods of namespace %s: %w", t.VPA.Namespace, err)
		}
		out[t.VPA.Namespace] = nil
		for i := range list.Items {
			out[t.VPA.Namespace] = append(out[t.VPA.Namespace], &list.Items[i])
		}
	}
	return out, nil
}

// load reads the checkpoints from before a restart.
func (c *Controller) load(ctx context.Context) error {
	all, err := c.store.checkpoints(ctx)
	if err != nil {
		return fmt.Errorf("read checkpoints: %w", err)
	}
	for i := range all {
		if err := c.model.Load(&all[i], time.Now()); err != nil {
			klog.FromContext(ctx).V(1).Info("A checkpoint is not used", "err", err)
		}
	}
	c.loaded = true
	return nil
}

// evictions records the pods that were evicted for their memory.
func (c *Controller) evictions(ctx context.Context, pods []*corev1.Pod, now time.Time) {
	here := map[types.UID]bool{}
	for _, pod := range pods {
		if pod.Status.Reason != vpa.Evicted {
			continue
		}
		here[pod.UID] = true
		if c.evicted[pod.UID] {
			continue
		}
		list, err := c.Recommender.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{
			FieldSelector: fields.Set{"involvedObject.name": pod.Name, "reason": vpa.Evicted}.String()})
		if err != nil {
			klog.FromContext(ctx).V(1).Info("The events of an evicted pod cannot be read", "pod", klog.KObj(pod), "err",
				err)
			delete(here, pod.UID) // again in the next pass
			continue
		}
		for i := range list.Items {
			e := &list.Items[i]
			if e.InvolvedObject.UID != pod.UID {
				continue
			}
			for container, bytes := range vpa.EvictedForMemory(e) {
				c.model.AddEviction(vpa.Name{Namespace: pod.Namespace, Name: pod.Name}, container, bytes,
					e.CreationTimestamp.Time, now)
			}
		}
	}
	c.evicted = here
}

// update changes the pods that differ from their recommendation.
func (c *Controller) update(ctx context.Context, targets []vpa.Target, pods map[string][]*corev1.Pod) {
	took := newStopwatch(updaterLatency)
	resetUpdateCounts()
	var updating []vpa.Target
	for _, t := range targets {
		if t.Selector != nil && vpa.Updates(t.VPA) {
			updating = append(updating, t)
		}
	}
	of, theirs := c.controllers(ctx), map[*vpa.VerticalPodAutoscaler][]*corev1.Pod{}
	if len(updating) > 0 {
		for _, list := range pods {
			for _, pod := range list {
				if !vpa.Live(pod) {
					continue
				}
				if v := vpa.Controlling(of, pod, targets); v != nil && vpa.Updates(v) {
					theirs[v] = append(theirs[v], pod)
				}
			}
		}
	}
	took.step("FilterPods")
	writes, resizes := map[string][]func(){}, map[string]vpa.Resizes{}
	for _, t := range updating {
		v, namespace := t.VPA, t.VPA.Namespace
		if resizes[namespace] == nil {
			since, here := c.resizes[namespace], map[types.UID]bool{}
			if since == nil {
				since = vpa.Resizes{}
			}
			for _, pod := range pods[namespace] {
				here[pod.UID] = true
			}
			resizes[namespace] = since
			writes[namespace] = append(writes[namespace], func() { since.Keep(here) })
		}
		if len(theirs[v]) == 0 {
			continue
		}
		writes[namespace] = append(writes[namespace], func() {
			if ctx.Err() != nil {
				return
			}
			if err := c.updateOf(ctx, v, theirs[v], resizes[namespace]); err != nil {
				klog.FromContext(ctx).V(1).Info("Cannot read the pods of a VerticalPodAutoscaler", "vpa",
					klog.KObj(v), "err", err)
			}
		})
	}
	c.resizes = resizes
	c.updates.run(ctx, writes)
	took.step("EvictPods")
	took.total()
}

func (c *Controller) updateOf(ctx context.Context, v *vpa.VerticalPodAutoscaler, pods []*corev1.Pod,
	since vpa.Resizes) error {
	log := klog.FromContext(ctx)
	list, err := c.Recommender.CoreV1().LimitRanges(v.Namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list limit ranges: %w", err)
	}
	ranges := make([]*corev1.LimitRange, len(list.Items))
	for i := range list.Items {
		ranges[i] = &list.Items[i]
	}
	round := vpa.NewRound(v, pods, func(o vpa.Owner) (int, bool) { return c.Owners.configured(v.Namespace, o) },
		vpa.RangesOf(ranges), since, time.Now())
	candidates := round.Candidates()
	count := newUpdateCounts(v, len(pods), len(candidates))
	var evict []*corev1.Pod
	for _, pod := range candidates {
		switch round.Step(pod) {
		case vpa.Evict:
			evict = append(evict, pod)
		case vpa.Resize:
			done, err := c.resize(ctx, round, pod)
			if err != nil {
				log.V(1).Info("A pod cannot be resized in place", "pod", klog.KObj(pod), "err", err)
				count.failedResize()
				if confirm.Unclear(err) { // it may have changed: no more pods change than allowed (W9.53)
					round.Resized(pod)
				} else {
					evict = append(evict, pod)
				}
			} else if done {
				round.Resized(pod)
				count.resized()
			}
		case vpa.Wait:
		}
	}
	for _, pod := range evict {
		if !round.MayEvict(pod) {
			continue
		}
		if err := c.evict(ctx, v, pod); err != nil {
			log.V(1).Info("A pod cannot be evicted", "pod", klog.KObj(pod), "err", err)
			count.failedEviction()
			if confirm.Unclear(err) {
				round.Evicted(pod)
			}
			continue
		}
		round.Evicted(pod)
		count.evicted()
	}
	return nil
}

// resize applies the recommendation to a running pod (W9.58). It reports whether it requested a
// change.
func (c *Controller) resize(ctx context.Context, round *vpa.Round, pod *corev1.Pod) (bool, error) {
	patch, err := round.Patch(pod)
	if err != nil || patch == nil {
		return false, err
	}
	api := c.Updater.CoreV1().Pods(pod.Namespace)
	if _, err := api.Patch(ctx, pod.Name, types.JSONPatchType, patch, metav1.PatchOptions{}, "resize"); err != nil {
		return false, fmt.Errorf("resize pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	note, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID,
		"annotations": map[string]string{vpa.InPlaceAnnotation: "true"}}})
	if err == nil {
		_, err = api.Patch(ctx, pod.Name, types.MergePatchType, note, metav1.PatchOptions{})
	}
	if err != nil { // the resize itself succeeded
		klog.FromContext(ctx).V(1).Info("A resized pod has no annotation", "pod", klog.KObj(pod), "err", err)
	}
	c.Events.Event(pod, corev1.EventTypeNormal, "InPlaceResizedByVPA", "Pod was resized in place by VPA Updater.")
	return true, nil
}

// evict evicts a pod, so that its owner creates another one (W9.57).
func (c *Controller) evict(ctx context.Context, v *vpa.VerticalPodAutoscaler, pod *corev1.Pod) error {
	uid := pod.UID
	err := c.Updater.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}})
	if err != nil {
		return fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	c.Events.Event(pod, corev1.EventTypeNormal, "EvictedByVPA",
		"Pod was evicted by VPA Updater to apply resource recommendation.")
	c.Events.Event(&corev1.ObjectReference{APIVersion: vpa.Group + "/" + vpa.Version, Kind: "VerticalPodAutoscaler",
		Namespace: v.Namespace, Name: v.Name, UID: v.UID}, corev1.EventTypeNormal, "EvictedPod",
		"VPA Updater evicted Pod "+pod.Name+" to apply resource recommendation.")
	return nil
}

// AdmitPod sets the recommended requests of a pod that is being created (W9.71). It implements the
// API server's admission.PodAutoscaler.
func (c *Controller) AdmitPod(ctx context.Context, pod *corev1.Pod, ranges []*corev1.LimitRange) {
	began, applied := time.Now(), false
	defer func() { admitted(began, applied) }()
	if metav1.GetControllerOfNoCopy(pod) == nil {
		return
	}
	var targets []vpa.Target
	of := c.controllers(ctx)
	for _, v := range source.Namespaced[*vpa.VerticalPodAutoscaler](c.VPAs, pod.Namespace) {
		if v.Mode() != vpa.ModeOff && v.DeletionTimestamp == nil {
			targets = append(targets, vpa.Resolve(of, v))
		}
	}
	if v := vpa.Controlling(of, pod, targets); v != nil {
		vpa.Admit(pod, v, vpa.RangesOf(ranges))
		applied = true
	}
}

var errNotThere = errors.New("does not exist")
