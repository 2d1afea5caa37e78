package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/placement"
	"carob/internal/core/volume"
)

// volumeTimeout is the maximum wait of a pod for its volumes before it is tried again (S0.34).
const volumeTimeout = 10 * time.Minute

// volumeWatches is the scheduler's state of persistent volumes. Nothing is watched before the first
// pod that uses a claim; these pods are held until all lists were delivered.
type volumeWatches struct {
	start   func() // starts the watches; nil: they run
	missing map[string]bool
	claims  map[string]*corev1.PersistentVolumeClaim // by namespace/name
	volumes map[string]*corev1.PersistentVolume
	sorted  []*corev1.PersistentVolume // nil: not computed
	classes map[string]*storagev1.StorageClass
	// assumed holds volumes and claims with the decided, unwritten changes for a pod.
	assumedVolumes map[string]*corev1.PersistentVolume
	assumedClaims  map[string]*corev1.PersistentVolumeClaim
	plans          map[types.UID]*volume.Plan
	waits          map[types.UID]*volumeWait
	csi            csiWatches
}

// volumeWait is a pod whose volumes are being bound.
type volumeWait struct {
	it    *item
	node  string
	plan  *volume.Plan
	timer *time.Timer
	next  func()
	fail  func(error)
}

func newVolumeWatches() *volumeWatches {
	return &volumeWatches{
		missing: map[string]bool{"PersistentVolumeClaim": true, "PersistentVolume": true, "StorageClass": true},
		claims:  map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{},
		classes: map[string]*storagev1.StorageClass{}, assumedVolumes: map[string]*corev1.PersistentVolume{},
		assumedClaims: map[string]*corev1.PersistentVolumeClaim{}, plans: map[types.UID]*volume.Plan{},
		waits: map[types.UID]*volumeWait{}, csi: newCSIWatches(),
	}
}

// The methods of volume.View, which include decided changes.

func (w *volumeWatches) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	key := namespace + "/" + name
	if c := w.assumedClaims[key]; c != nil && w.claims[key] != nil && c.UID == w.claims[key].UID {
		return c
	}
	return w.claims[key]
}

func (w *volumeWatches) Volume(name string) *corev1.PersistentVolume {
	if v := w.assumedVolumes[name]; v != nil && w.volumes[name] != nil && v.UID == w.volumes[name].UID {
		return v
	}
	return w.volumes[name]
}

func (w *volumeWatches) Volumes() []*corev1.PersistentVolume {
	if w.sorted == nil {
		for name := range w.volumes { // any order: sorted below
			w.sorted = append(w.sorted, w.Volume(name))
		}
		volume.SortVolumes(w.sorted)
	}
	return w.sorted
}

func (w *volumeWatches) Class(name string) *storagev1.StorageClass { return w.classes[name] }

func (w *volumeWatches) Classes() []*storagev1.StorageClass {
	var out []*storagev1.StorageClass
	for _, c := range w.classes { // any order: the reader's
		out = append(out, c)
	}
	return out
}

// actual is the same without decided changes that are not written yet.
type actual struct{ *volumeWatches }

func (a actual) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return a.claims[namespace+"/"+name]
}
func (a actual) Volume(name string) *corev1.PersistentVolume { return a.volumes[name] }

// needsVolumes reports whether the claims of a pod must be checked.
func needsVolumes(p *placement.Pod) bool {
	return len(p.Claims) > 0 && p.Profile().Enables(placement.VolumeBinding)
}

// holdsForVolumes reports whether a pod must not be tried because the first lists are still missing.
func (s *Scheduler) holdsForVolumes(p *placement.Pod) bool {
	if !needsVolumes(p) {
		return false
	}
	if s.volumes.start != nil {
		s.volumes.start()
		s.volumes.start = nil
	}
	return len(s.volumes.missing) > 0
}

// watchVolumes returns a function that starts the watches of claims, volumes, and classes.
func (s *Scheduler) watchVolumes(ctx context.Context, run func(func())) func() {
	return func() {
		core, w := s.client.CoreV1(), s.volumes
		w.csi.start = s.startDrivers(ctx, run)
		reflect(ctx, run, "persistentvolumeclaims", &corev1.PersistentVolumeClaim{},
			kindFeed(s, w.missing, "PersistentVolumeClaim", s.volumeClaimSeen, func(c *corev1.PersistentVolumeClaim) {
				delete(w.claims, c.Namespace+"/"+c.Name)
				s.claimStirs(c)
			}, func() []*corev1.PersistentVolumeClaim { return values(w.claims) }),
			everything(core.PersistentVolumeClaims(metav1.NamespaceAll), &corev1.PersistentVolumeClaim{}))
		reflect(ctx, run, "persistentvolumes", &corev1.PersistentVolume{},
			kindFeed(s, w.missing, "PersistentVolume", s.volumeSeen, func(v *corev1.PersistentVolume) {
				delete(w.volumes, v.Name)
				w.sorted = nil
				s.requeueForVolumes()
			}, func() []*corev1.PersistentVolume { return values(w.volumes) }),
			everything(core.PersistentVolumes(), &corev1.PersistentVolume{}))
		reflect(ctx, run, "storageclasses", &storagev1.StorageClass{},
			kindFeed(s, w.missing, "StorageClass",
				func(c *storagev1.StorageClass) {
					w.classes[c.Name] = c
					if volume.Provisions(c) && c.Provisioner != volume.LocalProvisioner {
						s.watchDrivers()
					}
					s.requeueForVolumes()
				},
				func(c *storagev1.StorageClass) { delete(w.classes, c.Name) },
				func() []*storagev1.StorageClass { return values(w.classes) }),
			everything(s.client.StorageV1().StorageClasses(), &storagev1.StorageClass{}))
	}
}

func values[T any](m map[string]T) []T {
	out := make([]T, 0, len(m))
	for _, v := range m { // any order: all are processed
		out = append(out, v)
	}
	return out
}

// older reports whether a is of an earlier version than b; both are of one object.
func older(a, b metav1.Object) bool {
	x, errX := strconv.ParseUint(a.GetResourceVersion(), 10, 64)
	y, errY := strconv.ParseUint(b.GetResourceVersion(), 10, 64)
	return errX == nil && errY == nil && x < y && a.GetUID() == b.GetUID()
}

// volumeClaimSeen handles a version of a claim, from the watch or from a write of the scheduler.
func (s *Scheduler) volumeClaimSeen(c *corev1.PersistentVolumeClaim) {
	key := c.Namespace + "/" + c.Name
	if before := s.volumes.claims[key]; before != nil && older(c, before) {
		return
	}
	s.volumes.claims[key] = c
	s.claimStirs(c)
}

// claimStirs re-queues the pods that a change of a claim concerns.
func (s *Scheduler) claimStirs(c *corev1.PersistentVolumeClaim) {
	s.queue.Requeue(func(it *item) bool {
		return refusedForVolumes(it) && it.pod.Object.Namespace == c.Namespace &&
			slices.ContainsFunc(it.pod.Claims, func(p volume.PodClaim) bool { return p.Name == c.Name })
	}, time.Now())
	s.lookBound()
}

func (s *Scheduler) volumeSeen(v *corev1.PersistentVolume) {
	if before := s.volumes.volumes[v.Name]; before != nil && older(v, before) {
		return
	}
	s.volumes.volumes[v.Name] = v
	if v.Spec.CSI != nil {
		s.watchDrivers()
	}
	s.volumes.sorted = nil
	s.requeueForVolumes()
	s.lookBound()
}

func refusedForVolumes(it *item) bool {
	return slices.Contains(it.refused, placement.VolumeBinding) ||
		slices.Contains(it.refused, placement.VolumeRestrictions) ||
		slices.Contains(it.refused, placement.VolumeZone) || slices.Contains(it.refused, placement.NodeVolumeLimits)
}

// requeueForVolumes re-queues all pods that were refused because of their volumes.
func (s *Scheduler) requeueForVolumes() { s.queue.Requeue(refusedForVolumes, time.Now()) }

// volumesLeft re-queues the pods that wait for a claim that a removed pod may have used
// exclusively.
func (s *Scheduler) volumesLeft(gone *placement.Pod) {
	if gone == nil || len(gone.Claims) == 0 {
		return
	}
	s.queue.Requeue(func(it *item) bool {
		return slices.Contains(it.refused, placement.NodeVolumeLimits) ||
			slices.Contains(it.refused, placement.VolumeRestrictions) &&
				it.pod.Object.Namespace == gone.Object.Namespace &&
				slices.ContainsFunc(it.pod.Claims, func(p volume.PodClaim) bool {
					return slices.Contains(gone.Claims, p)
				})
	}, time.Now())
}

// volumeNeeds returns the needs of a pod's claims; a refusal applies to all nodes.
func (s *Scheduler) volumeNeeds(p *placement.Pod) (*volume.Needs, *volume.Refusal) {
	needs, no := volume.NeedsOf(p.Object, p.Claims, s.volumes,
		func(claim string) bool { return s.cluster.Uses(p, claim) })
	if needs != nil && s.volumes.csi.watched {
		needs.AddDrivers(knownDrivers{s})
	}
	return needs, no
}

// checkVolumes returns the nodes on which the volumes of a pod can be used.
func checkVolumes(needs *volume.Needs, nodes []*corev1.Node, answers *placement.Answers) []*corev1.Node {
	var have []*corev1.Node
	for _, n := range nodes {
		if _, no := needs.On(n); no != nil {
			answers.Refused[n.Name] = placement.Refusal{Filter: placement.Filter(no.By), Reasons: no.Reasons,
				Curable: no.By == volume.Restrictions}
		} else {
			have = append(have, n)
		}
	}
	return have
}

// unusable returns the nodes where the volumes of a pod can't be used, of those that refuse it for other reasons:
// upstream's filters of volumes also run for nodes without their less important pods (L2.50). A limit of volumes, or a
// ReadWriteOncePod claim in use, is not among the reasons: removing pods helps. Such claims are the second result.
func (s *Scheduler) unusable(it *item, d placement.Decision) (nodes map[string]placement.Refusal, inUse []string) {
	if len(d.Refusals) == 0 || !needsVolumes(it.pod) {
		return nil, nil
	}
	needs, no := s.volumeNeeds(it.pod)
	if no != nil {
		return nil, nil // changed since the decision: the pod is tried again
	}
	out := map[string]placement.Refusal{}
	for i := range d.Refusals {
		n := s.cluster.Node(d.Refusals[i].Node)
		if !d.Refusals[i].Curable || n == nil {
			continue
		}
		if _, no := needs.On(n.Object); no != nil && no.By != volume.Restrictions && no.By != volume.Limits {
			out[n.Object.Name] = placement.Refusal{Filter: placement.Filter(no.By), Reasons: no.Reasons}
		}
	}
	return out, needs.InUse()
}

// reserveVolumes decides which volumes a pod gets on its node, and reserves them. It returns nil if
// no wait is needed.
func (s *Scheduler) reserveVolumes(it *item, node string) (*volume.Plan, error) {
	if !needsVolumes(it.pod) {
		return nil, nil
	}
	needs, no := s.volumeNeeds(it.pod)
	var plan *volume.Plan
	if n := s.cluster.Node(node); no == nil && n != nil {
		plan, no = needs.On(n.Object)
	}
	if no != nil {
		return nil, fmt.Errorf("running Reserve plugin %q: %v", no.By, no.Reasons)
	}
	if plan.Nothing() {
		return nil, nil
	}
	w := s.volumes
	for _, v := range plan.Volumes {
		w.assumedVolumes[v.Name] = v
	}
	for _, c := range plan.Claims {
		w.assumedClaims[c.Namespace+"/"+c.Name] = c
	}
	w.sorted = nil
	w.plans[it.pod.Object.UID] = plan
	return plan, nil
}

// forgetVolumes drops the decisions about the volumes of a pod, and ends the wait for them. Written changes
// stay (S2.24).
func (s *Scheduler) forgetVolumes(pod types.UID) {
	w := s.volumes
	if plan := w.plans[pod]; plan != nil {
		for _, v := range plan.Volumes {
			delete(w.assumedVolumes, v.Name)
		}
		for _, c := range plan.Claims {
			delete(w.assumedClaims, c.Namespace+"/"+c.Name)
		}
		w.sorted = nil
		delete(w.plans, pod)
	}
	if wait := w.waits[pod]; wait != nil {
		wait.timer.Stop()
		delete(w.waits, pod)
	}
}

// volumeError is the reason why the volumes of a pod could not be bound (S2.23). It does not pass on the kind of
// its cause: a claim that is not found does not mean that the pod is gone.
type volumeError struct{ why string }

func (e *volumeError) Error() string {
	return `running PreBind plugin "VolumeBinding": binding volumes: ` + e.why
}

// storeVolumes writes the decisions about the volumes of a pod, and calls next when they are bound.
// It runs in the background.
func (s *Scheduler) storeVolumes(ctx context.Context, it *item, node string, plan *volume.Plan, next func()) {
	core := s.client.CoreV1()
	var volumes []*corev1.PersistentVolume
	var claims []*corev1.PersistentVolumeClaim
	var err error
	for _, v := range plan.Volumes {
		var written *corev1.PersistentVolume
		if written, err = core.PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{}); err != nil {
			break
		}
		volumes = append(volumes, written)
	}
	for _, c := range plan.Claims {
		if err != nil {
			break
		}
		var written *corev1.PersistentVolumeClaim
		if written, err = core.PersistentVolumeClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{}); err == nil {
			claims = append(claims, written)
		}
	}
	s.box.post(func() {
		// Of an object that is deleted meanwhile, the watch shows nothing more: it must not come back.
		for _, v := range volumes {
			if known := s.volumes.volumes[v.Name]; known != nil && known.UID == v.UID {
				s.volumeSeen(v)
			}
		}
		for _, c := range claims {
			if known := s.volumes.claims[c.Namespace+"/"+c.Name]; known != nil && known.UID == c.UID {
				s.volumeClaimSeen(c)
			}
		}
		uid := it.pod.Object.UID
		fail := func(err error) {
			s.bindingEnded(ctx, it, node, &volumeError{err.Error()})
		}
		switch {
		case err != nil:
			fail(err)
		case s.assumed[uid] != it: // deleted meanwhile
			s.forgetVolumes(uid)
		default:
			w := &volumeWait{it: it, node: node, plan: plan, next: next, fail: fail}
			w.timer = time.AfterFunc(volumeTimeout, func() {
				s.box.post(func() {
					if s.volumes.waits[uid] == w {
						s.forgetVolumes(uid)
						fail(context.DeadlineExceeded)
					}
				})
			})
			s.volumes.waits[uid] = w
			s.lookBound()
		}
	})
}

// lookBound continues with the pods whose volumes are bound now, or cannot be bound.
func (s *Scheduler) lookBound() {
	for uid, w := range s.volumes.waits { // any order: each by itself
		if s.assumed[uid] != w.it {
			s.forgetVolumes(uid)
			continue
		}
		n := s.cluster.Node(w.node)
		if n == nil {
			s.forgetVolumes(uid)
			w.fail(fmt.Errorf("node %q not found", w.node))
			continue
		}
		done, err := w.plan.Bound(actual{s.volumes}, n.Object)
		if !done && err == nil {
			continue
		}
		s.forgetVolumes(uid)
		if err != nil {
			w.fail(err)
		} else {
			w.next()
		}
	}
}
