package cluster

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/placement"
	"carob/internal/core/podclaims"
	"carob/internal/scheduler/devices"
	"carob/internal/sim/fakeapi"
)

// deviceClaims is the part of the scheduler that allocates devices, as internal/scheduler/devices.go does.
type deviceClaims struct {
	s                       *scheduler
	claims, classes, slices *fakeapi.Watch
	index                   *devices.Index
	waits                   map[types.UID]deviceWait
}

// deviceWait is a pod with a node whose claims are not written yet.
type deviceWait struct {
	pod     *corev1.Pod
	node    string
	attempt *devices.Attempt
}

// newDeviceClaims starts the watches of claims, classes, and slices.
func (s *scheduler) newDeviceClaims() *deviceClaims {
	d := &deviceClaims{s: s, index: devices.NewIndex(), waits: map[types.UID]deviceWait{}}
	d.claims = fakeapi.NewWatch[*resourcev1.ResourceClaim](s.c.w.API)
	d.classes = fakeapi.NewWatch[*resourcev1.DeviceClass](s.c.w.API)
	d.slices = fakeapi.NewWatch[*resourcev1.ResourceSlice](s.c.w.API)
	for _, w := range []*fakeapi.Watch{d.claims, d.classes, d.slices} {
		w.OnEvent = func() { s.dirty = true }
		s.c.watches = append(s.c.watches, w)
	}
	return d
}

func needsDevices(p *corev1.Pod) bool { return len(p.Spec.ResourceClaims) > 0 }

// observe updates the index from the watches.
func (d *deviceClaims) observe() {
	if d == nil {
		return
	}
	for _, c := range fakeapi.Seen[*resourcev1.ResourceClaim](d.claims) {
		d.setClaim(c)
	}
	for _, c := range d.index.Claims() {
		version, err := strconv.Atoi(c.ResourceVersion)
		if err == nil && d.claims.Get(c.UID) == nil && d.claims.Version() >= version {
			d.index.RemoveClaim(c)
		}
	}
	for _, c := range fakeapi.Seen[*resourcev1.DeviceClass](d.classes) {
		d.index.SetClass(c)
	}
	for _, o := range fakeapi.Seen[*resourcev1.ResourceSlice](d.slices) {
		d.index.SetSlice(o)
	}
	for _, o := range d.index.Slices() {
		if d.slices.Get(o.UID) == nil {
			d.index.RemoveSlice(o)
		}
	}
}

func (d *deviceClaims) setClaim(c *resourcev1.ResourceClaim) {
	if d.s.c.w.options.Sabotage.Devices.IgnoresAllocations {
		c = c.DeepCopy()
		c.Status.Allocation = nil
	}
	d.index.SetClaim(c)
}

// schedule finds a node with devices for a pod. It returns false if the process has ended.
func (d *deviceClaims) schedule(p *corev1.Pod, prepared *placement.Pod) bool {
	s := d.s
	ctx := context.Background()
	attempt, why, err := d.index.Begin(ctx, p, devices.Limits{}, s.c.w.Now)
	if why != "" || err != nil || attempt == nil {
		return true // an event may help (S9.20, S9.21)
	}
	nodes, decision := s.snapshot.Candidates(prepared, s.next, true)
	s.next = decision.Next
	answers := placement.Answers{Accepted: map[string]bool{}, Refused: map[string]placement.Refusal{},
		Scores: map[string]int64{}}
	for _, n := range nodes {
		why, err := attempt.Try(ctx, n)
		if err != nil {
			panic(err)
		}
		if why == "" {
			answers.Accepted[n.Name] = true
		} else {
			answers.Refused[n.Name] = placement.Refusal{Filter: placement.DynamicResources, Reasons: []string{why}}
		}
	}
	node := ""
	if len(nodes) > 0 {
		chosen, again := s.snapshot.Choose(prepared, answers)
		if node = chosen.Node; again {
			node = ""
			s.notBefore[p.UID] = s.c.w.Now.Add(time.Second)
		}
	}
	if node == "" {
		return d.freeObstacle(p, attempt)
	}
	s.snapshot.SetPod(prepared, node)
	s.assumed[p.UID] = true
	d.index.Reserve(attempt, node)
	d.waits[p.UID] = deviceWait{p, node, attempt}
	return true
}

// freeObstacle frees the devices of a claim that keep its pod from all nodes (S9.29).
func (d *deviceClaims) freeObstacle(p *corev1.Pod, attempt *devices.Attempt) bool {
	c, _ := attempt.Obstacle()
	if c == nil {
		return true // an event may help
	}
	_, err := d.s.c.client.Update(c, func(o fakeapi.Object) {
		if stored, ok := o.(*resourcev1.ResourceClaim); ok {
			stored.Status = resourcev1.ResourceClaimStatus{}
		}
	})
	d.s.notBefore[p.UID] = d.s.c.w.Now.Add(time.Second)
	return !failed(err)
}

// bindReady writes the claims of pods that have a node, and binds them. It returns false if the process has ended.
func (d *deviceClaims) bindReady() bool {
	if d == nil {
		return true
	}
	for _, uid := range sorted(d.waits) {
		w := d.waits[uid]
		var reserved []types.UID
		var err error
		for _, c := range w.attempt.Claims() {
			if err == nil {
				if err = d.store(c, w); err == nil || errors.Is(err, fakeapi.ErrLost) {
					reserved = append(reserved, c.UID)
				}
			}
		}
		d.forget(uid)
		if failed(err) {
			return false
		}
		if err == nil {
			if !d.s.bind(w.pod, w.node) {
				return false
			}
			if d.s.assumed[uid] {
				continue
			}
		} else {
			d.s.undo(w.pod)
		}
		if !d.takeBack(w.pod, reserved) {
			return false
		}
	}
	return true
}

// storeTries is how often a claim is written after conflicts.
const storeTries = 5

// store writes the allocation of a claim, and reserves it for a pod (S9.27).
func (d *deviceClaims) store(c *resourcev1.ResourceClaim, w deviceWait) error {
	if podclaims.IsReserved(c, w.pod) {
		return nil
	}
	var err error
	result := w.attempt.Result(w.node, c.UID)
	for range storeTries {
		if err = d.storeOnce(c, w.pod, result); !errors.Is(err, fakeapi.ErrConflict) {
			return err
		}
		live, ok := d.s.c.w.Get(c.UID).(*resourcev1.ResourceClaim)
		if !ok {
			return fakeapi.ErrMissing
		}
		c = live
	}
	return err
}

func (d *deviceClaims) storeOnce(c *resourcev1.ResourceClaim, pod *corev1.Pod,
	result *resourcev1.AllocationResult) error {
	a, err := podclaims.Allocate(c, pod, result, d.s.c.w.Now)
	if err != nil {
		return err
	}
	if a.Finalizer {
		e, err := d.s.c.client.Update(c, func(o fakeapi.Object) {
			o.SetFinalizers(append(slices.Clone(o.GetFinalizers()), resourcev1.Finalizer))
		})
		if err != nil {
			return err
		}
		c, _ = e.Object.(*resourcev1.ResourceClaim)
	}
	if d.s.c.w.options.Sabotage.Devices.WrongPod {
		a.Status.ReservedFor[0].UID = "stranger"
	}
	e, err := d.s.c.client.Update(c, func(o fakeapi.Object) {
		if stored, ok := o.(*resourcev1.ResourceClaim); ok {
			stored.Status = *a.Status
		}
	})
	stored, ok := e.Object.(*resourcev1.ResourceClaim)
	if errors.Is(err, fakeapi.ErrLost) { // it may have its devices, which no other pod may get
		stored, ok = d.s.c.w.Get(c.UID).(*resourcev1.ResourceClaim)
	}
	if ok {
		d.setClaim(stored)
	}
	return err
}

// takeBack removes the reservations of a pod that could not be bound (S9.26). It returns false if the process has
// ended.
func (d *deviceClaims) takeBack(p *corev1.Pod, claims []types.UID) bool {
	for _, uid := range claims {
		_, err := d.s.c.client.Patch(uid, func(o fakeapi.Object) {
			if c, ok := o.(*resourcev1.ResourceClaim); ok {
				c.Status.ReservedFor = slices.DeleteFunc(slices.Clone(c.Status.ReservedFor),
					func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == p.UID })
			}
		})
		if failed(err) {
			return false
		}
	}
	return true
}

// forget drops the devices that are reserved for a pod; what is written stays.
func (d *deviceClaims) forget(pod types.UID) {
	if d != nil {
		d.index.Release(pod)
		delete(d.waits, pod)
	}
}
