// Package devices is the part of the simulated cluster that has to do with claims of devices: it drives core/podclaims
// as the controller of ResourceClaims, and checks claims, their reservations and devices. Package cluster runs it with
// the scheduler and nodes; it must never touch a real cluster.
//
// Contract: docs/spec/storage-and-node.md.
package devices

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/podclaims"
	"carob/internal/sim/fakeapi"
)

// Sabotage breaks a part; the zero value breaks nothing.
type Sabotage struct {
	Twice              bool // the controller acts before it has observed its own writes
	IgnoresAllocations bool // the scheduler does not see which devices are allocated
	WrongPod           bool // the scheduler reserves claims for another pod
	Eager              bool // the controller releases claims of pods that run
}

const (
	// Entry is the name of the claim in the pods, of its template, and of the class of the devices.
	Entry  = "gpu"
	driver = "driver.example.com"
)

// Class returns the class of all devices.
func Class() *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: Entry}}
}

// Slice returns the devices of a node.
func Slice(node string, devices int) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node,
			Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}}}
	for i := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i)})
	}
	return s
}

// Template returns the template of claims of one device.
func Template(namespace string) *resourcev1.ResourceClaimTemplate {
	return &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: Entry},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: Entry, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}}}}}
}

// Use makes the pods of a template use a claim of their own.
func Use(t *corev1.PodTemplateSpec) {
	t.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: Entry, ResourceClaimTemplateName: new(Entry)}}
}

// Controller simulates controllers/resourceclaim.
type Controller struct {
	api                     *fakeapi.API
	client                  *fakeapi.Client
	sabotage                Sabotage
	pods, claims, templates *fakeapi.Watch
	fresh                   *fakeapi.Tracker
	unclear                 map[types.UID]bool // pods for which a claim may exist although the request failed
	dirty                   bool
}

// NewController returns the controller of a new process.
func NewController(api *fakeapi.API, client *fakeapi.Client, caches *fakeapi.Caches, sabotage Sabotage) *Controller {
	c := &Controller{api: api, client: client, sabotage: sabotage, fresh: fakeapi.NewTracker(),
		unclear: map[types.UID]bool{}, dirty: true}
	changed := func() { c.dirty = true }
	c.pods = fakeapi.Shared[*corev1.Pod](caches, changed)
	c.claims = fakeapi.Shared[*resourcev1.ResourceClaim](caches, changed)
	c.templates = fakeapi.Shared[*resourcev1.ResourceClaimTemplate](caches, changed)
	return c
}

// Due returns whether there is something to do now.
func (c *Controller) Due() (now bool, at time.Time) { return c.dirty, time.Time{} }

// Turn handles all pods and claims after a change; false means that the process has ended.
func (c *Controller) Turn() bool {
	if !c.dirty {
		return true
	}
	if c.dirty = false; !c.fresh.Fresh() && !c.sabotage.Twice {
		return true // called when it is delivered
	}
	for _, p := range fakeapi.Seen[*corev1.Pod](c.pods) {
		if len(p.Spec.ResourceClaims) > 0 && c.ended(c.provide(p)) {
			return false
		}
	}
	for _, claim := range fakeapi.Seen[*resourcev1.ResourceClaim](c.claims) {
		if c.ended(c.release(claim)) {
			return false
		}
	}
	return true
}

// ended reports whether an error means that the process has ended; after another one, there is another turn.
func (c *Controller) ended(err error) bool {
	c.dirty = c.dirty || err != nil
	return errors.Is(err, fakeapi.ErrCrash)
}

// provide creates the claims of a pod, writes their names to its status, and reserves those that are allocated.
func (c *Controller) provide(p *corev1.Pod) error {
	in := podclaims.Input{Pod: p, Claims: map[string]*resourcev1.ResourceClaim{},
		Templates: map[string]*resourcev1.ResourceClaimTemplate{}}
	for _, claim := range fakeapi.Seen[*resourcev1.ResourceClaim](c.claims) {
		if podclaims.OwnedBy(p, claim) || slices.Contains(podclaims.Names(p), claim.Name) {
			in.Claims[claim.Name] = claim
		}
	}
	for _, t := range fakeapi.Seen[*resourcev1.ResourceClaimTemplate](c.templates) {
		in.Templates[t.Name] = t
	}
	plan := podclaims.ForPod(in)
	if len(plan.Create) > 0 && c.unclear[p.UID] && !c.sabotage.Twice {
		for _, claim := range fakeapi.All[*resourcev1.ResourceClaim](c.api) {
			if podclaims.OwnedBy(p, claim) {
				in.Claims[claim.Name] = claim
				c.fresh.Unclear(c.claims, claim.UID)
			}
		}
		plan = podclaims.ForPod(in)
	}
	delete(c.unclear, p.UID)
	names := map[string]string{}
	maps.Copy(names, plan.Found)
	var failed error
	for _, n := range plan.Create {
		e, err := c.client.Create(n.Claim, func(fakeapi.Object) bool { return false })
		if failed = err; err != nil {
			c.unclear[p.UID] = true
			break
		}
		c.fresh.Wrote(c.claims, e)
		names[n.Entry] = e.Object.GetName()
	}
	if len(names) > 0 && !errors.Is(failed, fakeapi.ErrCrash) {
		e, err := c.client.Patch(p.UID, func(o fakeapi.Object) {
			if stored, ok := o.(*corev1.Pod); ok {
				stored.Status.ResourceClaimStatuses = podclaims.Statuses(p, names)
			}
		})
		switch {
		case errors.Is(err, fakeapi.ErrMissing):
		case err != nil:
			return err
		default:
			c.fresh.Wrote(c.pods, e)
		}
	}
	return errors.Join(failed, plan.Err)
}

// store writes the status or the finalizers of a claim; nil means that a newer version is stored.
func (c *Controller) store(claim *resourcev1.ResourceClaim, do func(*resourcev1.ResourceClaim)) (
	*resourcev1.ResourceClaim, error) {
	e, err := c.client.Update(claim, func(o fakeapi.Object) {
		if stored, ok := o.(*resourcev1.ResourceClaim); ok {
			do(stored)
		}
	})
	switch {
	case errors.Is(err, fakeapi.ErrConflict):
		c.fresh.Unclear(c.claims, claim.UID)
		return nil, nil
	case errors.Is(err, fakeapi.ErrMissing):
		c.fresh.Deleted(c.claims, claim.UID)
		return nil, nil
	case err != nil:
		return nil, err
	}
	c.fresh.Wrote(c.claims, e)
	stored, _ := e.Object.(*resourcev1.ResourceClaim)
	return stored, nil
}

// release frees a claim of pods that have ended (S9.15, S9.16).
func (c *Controller) release(claim *resourcev1.ResourceClaim) error {
	gone := map[string]bool{}
	for _, ref := range claim.Status.ReservedFor {
		p, ok := c.pods.Get(ref.UID).(*corev1.Pod)
		if !ok { // the watch may not show it yet
			p, ok = c.api.Get(ref.UID).(*corev1.Pod)
		}
		gone[string(ref.UID)] = !ok || podclaims.Done(p) || c.sabotage.Eager && p.Status.Phase == corev1.PodRunning
	}
	var owner *corev1.Pod
	name, _ := podclaims.Owner(claim)
	for _, p := range fakeapi.Seen[*corev1.Pod](c.pods) {
		if p.Name == name && p.Namespace == claim.Namespace {
			owner = p
		}
	}
	r := podclaims.ForClaim(claim, gone, owner)
	now := claim
	var err error
	if r.Status != nil {
		now, err = c.store(now, func(o *resourcev1.ResourceClaim) { o.Status = *r.Status })
		if err != nil || now == nil {
			return err
		}
	}
	if r.Finalizer {
		now, err = c.store(now, func(o *resourcev1.ResourceClaim) {
			o.Finalizers = slices.DeleteFunc(slices.Clone(o.Finalizers),
				func(f string) bool { return f == resourcev1.Finalizer })
		})
		if err != nil || now == nil {
			return err
		}
	}
	if r.Delete {
		_, err = c.client.Delete(claim.UID, 0)
		if err == nil || errors.Is(err, fakeapi.ErrMissing) {
			c.fresh.Deleted(c.claims, claim.UID)
			return nil
		}
	}
	return err
}
