package scheduler

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/core/placement"
	"carob/internal/core/podclaims"
	"carob/internal/scheduler/devices"
)

// deviceWatches is the scheduler's state of devices. Nothing is watched before the first pod that
// may need devices; these pods are held until all lists were delivered.
type deviceWatches struct {
	index   *devices.Index
	start   func() // starts the watches; nil: they run
	missing map[string]bool
	held    map[types.UID]*item        // pods that wait for claims, without an event (S9.20)
	ready   map[types.UID]*readyWaiter // pods whose devices are being prepared (S9.28)
}

// readyWaiter is a pod whose claims are stored, and whose devices are not ready yet.
type readyWaiter struct {
	it     *item
	stored *devices.Stored
	timer  *time.Timer
	bind   func()
	fail   func(error)
}

func newDeviceWatches() *deviceWatches {
	return &deviceWatches{index: devices.NewIndex(), held: map[types.UID]*item{}, ready: map[types.UID]*readyWaiter{},
		missing: map[string]bool{"ResourceClaim": true, "DeviceClass": true, "ResourceSlice": true,
			"DeviceTaintRule": true}}
}

// needsDevices reports whether devices may have to be allocated for a pod.
func needsDevices(p *placement.Pod) bool {
	return p.Profile().Enables(placement.DynamicResources) &&
		(len(p.Object.Spec.ResourceClaims) > 0 || podclaims.MayBeDevices(p.Object))
}

// holds reports whether a pod must not be tried because claims of it are missing (S9.20).
func (s *Scheduler) holds(p *placement.Pod) bool {
	if !needsDevices(p) {
		return false
	}
	d := s.devices
	if d.start != nil {
		d.start()
		d.start = nil
	}
	if len(d.missing) > 0 {
		return true
	}
	_, why := d.index.Wanted(p.Object)
	return why != ""
}

// watchDevices returns a function that starts the watches of all kinds that allocations need.
func (s *Scheduler) watchDevices(ctx context.Context, run func(func())) func() {
	return func() {
		api := s.client.ResourceV1()
		x, missing := s.devices.index, s.devices.missing
		claims := kindFeed(s, missing, "ResourceClaim", s.claimSeen, s.claimGone, x.Claims)
		reflect(ctx, run, "resourceclaims", &resourcev1.ResourceClaim{}, claims,
			everything(api.ResourceClaims(metav1.NamespaceAll), &resourcev1.ResourceClaim{}))
		reflect(ctx, run, "deviceclasses", &resourcev1.DeviceClass{},
			kindFeed(s, missing, "DeviceClass",
				func(c *resourcev1.DeviceClass) { x.SetClass(c); s.requeueForDevices() },
				x.RemoveClass, x.Classes), everything(api.DeviceClasses(), &resourcev1.DeviceClass{}))
		reflect(ctx, run, "resourceslices", &resourcev1.ResourceSlice{},
			kindFeed(s, missing, "ResourceSlice",
				func(o *resourcev1.ResourceSlice) { x.SetSlice(o); s.requeueForDevices() },
				func(o *resourcev1.ResourceSlice) { x.RemoveSlice(o); s.requeueForDevices() }, x.Slices),
			everything(api.ResourceSlices(), &resourcev1.ResourceSlice{}))
		reflect(ctx, run, "devicetaintrules", &resourcev1.DeviceTaintRule{},
			kindFeed(s, missing, "DeviceTaintRule",
				func(r *resourcev1.DeviceTaintRule) { x.SetRule(r); s.requeueForDevices() },
				func(r *resourcev1.DeviceTaintRule) { x.RemoveRule(r); s.requeueForDevices() }, x.Rules),
			everything(api.DeviceTaintRules(), &resourcev1.DeviceTaintRule{}))
	}
}

// claimSeen handles a version of a claim, from the watch or from a write of the scheduler.
func (s *Scheduler) claimSeen(c *resourcev1.ResourceClaim) {
	before, taken := s.devices.index.SetClaim(c)
	if !taken {
		return
	}
	s.release()
	switch {
	case before != nil && before.Status.Allocation != nil && c.Status.Allocation == nil:
		s.requeueForDevices() // devices are free
		s.lookReady(c)
	case before == nil || !equality.Semantic.DeepEqual(before.Status, c.Status):
		s.requeueUsers(c)
		s.lookReady(c)
	}
}

func (s *Scheduler) claimGone(c *resourcev1.ResourceClaim) {
	s.devices.index.RemoveClaim(c)
	if c.Status.Allocation != nil {
		s.requeueForDevices()
	} else {
		// Without devices, it can only be in the way of the pod that it was created for (S9.61).
		s.queue.Requeue(func(it *item) bool {
			return slices.Contains(it.refused, placement.DynamicResources) && podclaims.IsExtended(it.pod.Object, c)
		}, time.Now())
	}
	s.lookReady(c)
}

// release continues with pods that are no longer held.
func (s *Scheduler) release() {
	for _, it := range s.devices.held {
		if s.queue.items[it.pod.Object.UID] != it || it.area != gated {
			delete(s.devices.held, it.pod.Object.UID)
		} else if !s.queue.held(it.pod) {
			delete(s.devices.held, it.pod.Object.UID)
			s.queue.activate(it, time.Now())
		}
	}
}

// requeueForDevices re-queues all pods that found no devices.
func (s *Scheduler) requeueForDevices() {
	s.queue.Requeue(func(it *item) bool { return slices.Contains(it.refused, placement.DynamicResources) }, time.Now())
	s.considerClasses()
}

// considerClasses re-queues pods that lacked a resource that a class now serves.
func (s *Scheduler) considerClasses() {
	s.queue.Requeue(func(it *item) bool {
		return slices.Contains(it.refused, placement.NodeResourcesFit) && needsDevices(it.pod) &&
			!it.pod.ServedByClass(s.devices.index.ByClass(it.pod.Object))
	}, time.Now())
}

// requeueUsers re-queues the pods that use a claim.
func (s *Scheduler) requeueUsers(c *resourcev1.ResourceClaim) {
	s.queue.Requeue(func(it *item) bool {
		pod := it.pod.Object
		return slices.Contains(it.refused, placement.DynamicResources) && pod.Namespace == c.Namespace &&
			slices.Contains(podclaims.Names(pod), c.Name)
	}, time.Now())
}

// beginDevices starts the allocation for a popped pod. done means that the attempt is over: the pod
// cannot get any.
func (s *Scheduler) beginDevices(ctx context.Context, it *item, began time.Time) (a *devices.Attempt, done bool) {
	p := it.pod.Profile()
	it.pod.ServeByClass(s.devices.index.ByClass(it.pod.Object))
	a, why, err := s.devices.index.Begin(ctx, it.pod.Object, devices.Limits{Node: p.DeviceFilter,
		Binding: p.DeviceBinding},
		time.Now())
	switch {
	case err != nil:
		s.failed(ctx, it, err)
		return nil, true
	case why != "":
		s.noNode(ctx, it, s.cluster.Nowhere(placement.DynamicResources, why), began)
		return nil, true
	}
	return a, false
}

// checkDevices requests devices on the nodes, until enough nodes have them.
func checkDevices(ctx context.Context, a *devices.Attempt, nodes []*corev1.Node, enough int,
	answers *placement.Answers) ([]*corev1.Node, error) {
	var have []*corev1.Node
	for _, n := range nodes {
		if len(have) >= enough {
			break
		}
		why, err := a.Try(ctx, n)
		if err != nil {
			return nil, err
		}
		if why == "" {
			have = append(have, n)
		} else {
			answers.Refused[n.Name] = placement.Refusal{Filter: placement.DynamicResources, Reasons: []string{why}}
		}
	}
	return have, nil
}

// reserveDevices reserves the found devices while they are written.
func (s *Scheduler) reserveDevices(it *item, node string) {
	if it.devices != nil {
		s.devices.index.Reserve(it.devices, node)
	}
}

// releaseDevices frees the devices that were reserved for a pod, and that will not be written: its volumes could not be
// bound, or it is deleted. storeDevices releases those that are being written.
func (s *Scheduler) releaseDevices(it *item) {
	if it.devices != nil && !it.storing && s.devices.index.Release(it.pod.Object.UID) {
		s.requeueForDevices()
	}
}

// storeDevices writes the allocations of a pod that has its node, and binds it when its devices are ready. It runs in
// the background; stored holds the writes.
func (s *Scheduler) storeDevices(ctx context.Context, it *item, node string, bind func()) {
	a := it.devices
	stored, err := a.Store(ctx, s.client, node)
	s.box.post(func() {
		pod := it.pod.Object
		for _, c := range stored.Current(s.devices.index) {
			s.claimSeen(c)
		}
		s.devices.index.Release(pod.UID)
		it.stored, it.storing = stored, false
		fail := func(err error) {
			// The error's kind is not passed on: a claim that is not found does not mean that the pod
			// is gone.
			s.bindingEnded(ctx, it, node, errors.New("running PreBind plugin \"DynamicResources\": "+err.Error()))
		}
		switch {
		case err != nil:
			fail(err)
			s.requeueForDevices() // those that are not written are free
		case s.assumed[pod.UID] != it: // deleted meanwhile: the resourceclaim controller removes its reservations
		default:
			w := &readyWaiter{it: it, stored: stored, bind: bind, fail: fail}
			s.devices.ready[pod.UID] = w
			if !s.bindWhenReady(w) {
				s.eventf(pod, corev1.EventTypeNormal, "BindingConditionsPending", "Scheduling",
					"waiting for binding conditions for device on node %s", node)
			}
		}
	})
}

// bindWhenReady binds a pod whose devices are ready, or re-queues it if they never will be. It reports whether the
// wait is over.
func (s *Scheduler) bindWhenReady(w *readyWaiter) bool {
	pod := w.it.pod.Object
	ready, until, err := w.stored.Ready(s.devices.index, time.Now(), w.it.pod.Profile().DeviceBinding)
	if !ready && err == nil {
		// Set anew each time: the claim may have been allocated again, and the wall clock may have stepped back.
		if w.timer != nil {
			w.timer.Stop()
		}
		if !until.IsZero() {
			w.timer = time.AfterFunc(time.Until(until), func() {
				s.box.post(func() {
					if s.devices.ready[pod.UID] == w {
						s.bindWhenReady(w)
					}
				})
			})
		}
		return false
	}
	s.forgetReady(pod.UID)
	if err != nil {
		w.fail(err)
		return true
	}
	s.calls.Do(pod.UID, w.bind)
	return true
}

func (s *Scheduler) forgetReady(pod types.UID) {
	if w := s.devices.ready[pod]; w != nil && w.timer != nil {
		w.timer.Stop()
	}
	delete(s.devices.ready, pod)
}

// lookReady checks the pods that wait for devices of a claim.
func (s *Scheduler) lookReady(c *resourcev1.ResourceClaim) {
	for uid, w := range s.devices.ready {
		if s.assumed[uid] != w.it {
			s.forgetReady(uid)
		} else if slices.ContainsFunc(w.stored.Claims,
			func(o *resourcev1.ResourceClaim) bool { return o.UID == c.UID }) {
			s.bindWhenReady(w)
		}
	}
}

// undoDevices removes the reservations of a pod that is not bound.
func (s *Scheduler) undoDevices(ctx context.Context, it *item) {
	stored, a := it.stored, it.devices
	it.stored = nil
	if stored == nil {
		return
	}
	s.calls.Do(it.pod.Object.UID, func() {
		if err := a.Undo(ctx, s.client, stored); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot release reservations of claims", "pod",
				klog.KObj(it.pod.Object))
		}
	})
}

// freeObstacle frees a claim that keeps a pod from all nodes and that no other pod uses (S9.29).
// It returns the message for the pod.
func (s *Scheduler) freeObstacle(ctx context.Context, it *item) string {
	if it.devices == nil {
		return ""
	}
	c, made := it.devices.Obstacle()
	if c == nil {
		return ""
	}
	s.calls.Do(it.pod.Object.UID, func() {
		free := devices.Deallocate
		if made {
			free = devices.Delete
		}
		if err := free(ctx, s.client, c); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Freeing the devices of a claim failed", "claim", klog.KObj(c))
		}
	})
	if made {
		return "deletion of ResourceClaim completed"
	}
	return "deallocation of ResourceClaim completed"
}
