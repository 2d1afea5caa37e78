// Package quotas is the part of the simulated cluster that has to do with resource quotas: the admission that charges
// each creation, the controller that counts what exists, and the checks of both. core/quota has the rules. Package
// cluster runs it; it must never touch a real cluster.
//
// Contract: docs/spec/pod-lifecycle.md and docs/spec/workloads.md.
package quotas

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"

	"carob/internal/core/quota"
	"carob/internal/core/workload"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	Within   fakeapi.Invariant = "an object is created only if all objects together fit their quota (L1.36)"
	Charged  fakeapi.Invariant = "status.used of a quota is never less than what exists (L1.36)"
	Released fakeapi.Invariant = "when the faults end, status.used of a quota is what exists (W1.24)"
)

// Sabotage breaks a part; the zero value breaks nothing.
type Sabotage struct {
	Unlimited bool // admission charges whatever the limit is
	Overwrite bool // the controller writes its count over a newer status
	Keep      bool // the controller never lowers a count
}

// ErrForbidden means that an object would exceed a quota.
var ErrForbidden = errors.New("exceeded quota")

// Quota returns a quota of pods, their requests, and claims of devices.
func Quota(namespace, name string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// SetHard sets the limits of a quota. cpu is in thousandths.
func SetHard(q *corev1.ResourceQuota, pods, cpu, claims int64) {
	q.Spec.Hard = corev1.ResourceList{
		corev1.ResourcePods:                    *resource.NewQuantity(pods, resource.DecimalSI),
		corev1.ResourceRequestsCPU:             *resource.NewMilliQuantity(cpu, resource.DecimalSI),
		"count/resourceclaims.resource.k8s.io": *resource.NewQuantity(claims, resource.DecimalSI),
	}
}

// Usage returns what an object uses of all quotas; nil for nothing.
func Usage(o fakeapi.Object, now time.Time) corev1.ResourceList {
	kind := "pods"
	switch o.(type) {
	case *corev1.Pod:
	case *resourcev1.ResourceClaim:
		kind = "resourceclaims"
	default:
		return nil
	}
	for _, k := range quota.Kinds(nil) {
		if k.Group.Resource == kind {
			used, err := k.Usage(o, now)
			if err != nil {
				panic(err)
			}
			return used
		}
	}
	return nil
}

// count returns what all objects of a namespace use of a quota's resources.
func count(api *fakeapi.API, q *corev1.ResourceQuota) corev1.ResourceList {
	names := quotav1.ResourceNames(q.Spec.Hard)
	used := corev1.ResourceList{}
	for _, n := range names {
		used[n] = resource.MustParse("0")
	}
	for _, o := range fakeapi.All[fakeapi.Object](api) {
		if o.GetNamespace() == q.Namespace {
			used = quotav1.Add(used, quotav1.Mask(Usage(o, api.Now), names))
		}
	}
	return used
}

// Admission is the admission of an API server. It reads quotas from its watch; its own writes are newer.
type Admission struct {
	api      *fakeapi.API
	sabotage Sabotage
	watch    *fakeapi.Watch
	written  map[types.UID]fakeapi.Entry
}

// NewAdmission returns the admission of a new process. Its watch must be delivered.
func NewAdmission(api *fakeapi.API, watch *fakeapi.Watch, sabotage Sabotage) *Admission {
	return &Admission{api: api, sabotage: sabotage, watch: watch, written: map[types.UID]fakeapi.Entry{}}
}

// tries is how often a charge is tried when the status has changed, as in k8s.io/apiserver.
const tries = 3

// Charge charges an object that is to be created. The object is not created after an error; the charge may be stored
// all the same, as the process may end after it.
func (a *Admission) Charge(o fakeapi.Object) error {
	used := Usage(o, a.api.Now)
	for _, seen := range fakeapi.Seen[*corev1.ResourceQuota](a.watch) {
		delta := quotav1.Mask(used, quotav1.ResourceNames(seen.Spec.Hard))
		if seen.Namespace != o.GetNamespace() || quotav1.IsZero(delta) {
			continue
		}
		if err := a.charge(seen.UID, delta); err != nil {
			return err
		}
		if a.api.One(60) {
			return fakeapi.ErrCrash
		}
	}
	return nil
}

func (a *Admission) charge(uid types.UID, delta corev1.ResourceList) error {
	for range tries {
		q := a.newest(uid)
		if q == nil {
			return nil
		}
		if len(q.Status.Hard) < len(q.Spec.Hard) {
			return fmt.Errorf("%w: status unknown for quota %s", ErrForbidden, q.Name)
		}
		used := quotav1.Add(q.Status.Used, delta)
		if fits, _ := quotav1.LessThanOrEqual(quotav1.Mask(used, quotav1.ResourceNames(delta)), q.Status.Hard); !fits &&
			!a.sabotage.Unlimited {
			return fmt.Errorf("%w %s", ErrForbidden, q.Name)
		}
		live, ok := a.api.Read(uid)
		if !ok {
			return nil
		}
		if live.Object.GetResourceVersion() != q.ResourceVersion {
			a.watch.Deliver()
			continue
		}
		setStatus(a.api, uid, corev1.ResourceQuotaStatus{Hard: q.Status.Hard, Used: used})
		if e, ok := a.api.Read(uid); ok {
			a.written[uid] = e
		}
		return nil
	}
	return fakeapi.ErrConflict
}

// newest returns a quota of the watch, or as this process has written it.
func (a *Admission) newest(uid types.UID) *corev1.ResourceQuota {
	seen, _ := a.watch.Get(uid).(*corev1.ResourceQuota)
	if e, ok := a.written[uid]; ok && e.Version > a.watch.Version() {
		seen, _ = e.Object.(*corev1.ResourceQuota)
	}
	return seen
}

func setStatus(api *fakeapi.API, uid types.UID, s corev1.ResourceQuotaStatus) {
	api.Change(uid, func(o fakeapi.Object) {
		if q, ok := o.(*corev1.ResourceQuota); ok {
			q.Status = s
		}
	})
}

// gather is how long changes are counted together, and recount how often all are counted, as in controllers/quota.
const (
	gather  = 200 * time.Millisecond
	recount = 5 * time.Minute
)

// Controller simulates controllers/quota: it counts in one turn, and writes in a later one.
type Controller struct {
	api      *fakeapi.API
	client   *fakeapi.Client
	sabotage Sabotage
	due      time.Time
	counted  []counted
}

// counted is a count that is to be written.
type counted struct {
	quota *corev1.ResourceQuota // that was read before the objects
	used  corev1.ResourceList
}

// NewController returns the controller of a new process.
func NewController(api *fakeapi.API, client *fakeapi.Client, caches *fakeapi.Caches, sabotage Sabotage) *Controller {
	c := &Controller{api: api, client: client, sabotage: sabotage, due: api.Now}
	changed := func() { c.due = workload.Earlier(c.due, c.api.Now.Add(gather)) }
	fakeapi.Shared[*corev1.ResourceQuota](caches, changed)
	fakeapi.Shared[*corev1.Pod](caches, changed)
	fakeapi.Shared[*resourcev1.ResourceClaim](caches, changed)
	return c
}

// Due returns whether there is a count to write, and when to count again.
func (c *Controller) Due() (now bool, at time.Time) { return len(c.counted) > 0, c.due }

// Turn writes what was counted, or counts; false means that the process has ended.
func (c *Controller) Turn() bool {
	if len(c.counted) > 0 {
		return c.write()
	}
	if c.api.Now.Before(c.due) {
		return true
	}
	c.due = c.api.Now.Add(recount)
	for _, q := range fakeapi.All[*corev1.ResourceQuota](c.api) {
		c.counted = append(c.counted, counted{q, count(c.api, q)})
	}
	return true
}

func (c *Controller) write() bool {
	all := c.counted
	c.counted = nil
	for _, one := range all {
		q := one.quota
		status := corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: one.used}
		if c.sabotage.Keep {
			status.Used = quotav1.Max(one.used, q.Status.Used)
		}
		if equality.Semantic.DeepEqual(status, q.Status) {
			continue
		}
		set := func(o fakeapi.Object) {
			if stored, ok := o.(*corev1.ResourceQuota); ok {
				stored.Status = status
			}
		}
		var err error
		if c.sabotage.Overwrite {
			_, err = c.client.Patch(q.UID, set)
		} else {
			_, err = c.client.Update(q, set)
		}
		switch {
		case errors.Is(err, fakeapi.ErrCrash):
			return false
		case err != nil && !errors.Is(err, fakeapi.ErrMissing): // charged meanwhile: count again
			c.due = workload.Earlier(c.due, c.api.Now.Add(gather))
		}
	}
	return true
}
