package cluster

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/placement"
	"carob/internal/core/volume"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/storage"
)

// volumeTimeout is the maximum wait of a pod for its volumes before it is tried again (S0.34).
const volumeTimeout = 10 * time.Minute

// volumes is the part of the scheduler that chooses the volumes of pods, as internal/scheduler/volumes.go does. It is
// the view of its decisions, which includes those that are not written yet.
type volumes struct {
	*storage.View  // what is stored
	s              *scheduler
	assumedVolumes map[string]*corev1.PersistentVolume
	assumedClaims  map[string]*corev1.PersistentVolumeClaim
	plans          map[types.UID]*volume.Plan
	waits          map[types.UID]wait
}

// wait is a pod whose volumes are being bound.
type wait struct {
	pod   *corev1.Pod
	node  string
	until time.Time
}

// newVolumes starts the watches of claims and volumes.
func (s *scheduler) newVolumes() *volumes {
	w := s.c.w
	claims := fakeapi.NewWatch[*corev1.PersistentVolumeClaim](w.API)
	stored := fakeapi.NewWatch[*corev1.PersistentVolume](w.API)
	claims.OnEvent = func() { s.dirty = true }
	stored.OnEvent = func() { s.dirty = true }
	s.c.watches = append(s.c.watches, claims, stored)
	return &volumes{View: w.storage.NewView(claims, stored), s: s,
		assumedVolumes: map[string]*corev1.PersistentVolume{},
		assumedClaims:  map[string]*corev1.PersistentVolumeClaim{}, plans: map[types.UID]*volume.Plan{},
		waits: map[types.UID]wait{}}
}

// Claim implements volume.View.
func (v *volumes) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	c := v.View.Claim(namespace, name)
	if assumed := v.assumedClaims[name]; assumed != nil && c != nil && assumed.UID == c.UID {
		return assumed
	}
	return c
}

// Volume implements volume.View.
func (v *volumes) Volume(name string) *corev1.PersistentVolume { return v.assume(v.View.Volume(name)) }

// Volumes implements volume.View.
func (v *volumes) Volumes() []*corev1.PersistentVolume {
	all := v.View.Volumes()
	for i := range all {
		all[i] = v.assume(all[i])
	}
	return all
}

func (v *volumes) assume(stored *corev1.PersistentVolume) *corev1.PersistentVolume {
	if stored == nil {
		return nil
	}
	if assumed := v.assumedVolumes[stored.Name]; assumed != nil && assumed.UID == stored.UID {
		return assumed
	}
	return stored
}

// needs reports whether the volumes of a pod must be checked.
func (v *volumes) needs(p *placement.Pod) bool {
	return v != nil && len(p.Claims) > 0 && !v.s.c.w.options.Sabotage.Storage.Anywhere
}

// decide returns the node for a pod with claims. again means that the pod must be tried again.
func (v *volumes) decide(p *placement.Pod) (d placement.Decision, again bool) {
	needs, no := v.needsOf(p)
	if no != nil {
		return v.s.snapshot.Nowhere(placement.Filter(no.By), no.Reasons[0]), false
	}
	nodes, d := v.s.snapshot.Candidates(p, v.s.next, true)
	if len(nodes) == 0 {
		d.Unusable = v.unusable(p, d)
		return d, false
	}
	answers := placement.Answers{Accepted: map[string]bool{}, Refused: map[string]placement.Refusal{},
		Scores: map[string]int64{}}
	for _, n := range nodes {
		if _, no := needs.On(n); no != nil {
			answers.Refused[n.Name] = placement.Refusal{Filter: placement.Filter(no.By), Reasons: no.Reasons}
		} else {
			answers.Accepted[n.Name] = true
		}
	}
	next := d.Next
	d, again = v.s.snapshot.Choose(p, answers)
	d.Next, d.Unusable = next, v.unusable(p, d)
	return d, again
}

func (v *volumes) needsOf(p *placement.Pod) (*volume.Needs, *volume.Refusal) {
	return volume.NeedsOf(p.Object, p.Claims, v, func(claim string) bool { return v.s.snapshot.Uses(p, claim) })
}

// unusable returns the nodes where removing pods does not help, because the volumes of the pod can't be used there.
func (v *volumes) unusable(p *placement.Pod, d placement.Decision) map[string]placement.Refusal {
	needs, no := v.needsOf(p)
	if no != nil {
		return nil
	}
	out := map[string]placement.Refusal{}
	for i := range d.Refusals {
		if n := v.s.snapshot.Node(d.Refusals[i].Node); n != nil {
			if _, no := needs.On(n.Object); no != nil {
				out[n.Object.Name] = placement.Refusal{Filter: placement.Filter(no.By), Reasons: no.Reasons}
			}
		}
	}
	return out
}

// reserve decides which volumes a pod gets on its node, and writes that. bound means that the pod can be bound at once;
// otherwise it waits for its volumes, or is tried again after an error.
func (v *volumes) reserve(p *placement.Pod, node string) (bound bool, err error) {
	n := v.s.snapshot.Node(node)
	needs, no := v.needsOf(p)
	if no != nil || n == nil {
		return false, fakeapi.ErrMissing
	}
	plan, no := needs.On(n.Object)
	if no != nil {
		return false, fakeapi.ErrMissing
	}
	if plan.Nothing() {
		return true, nil
	}
	for _, o := range plan.Volumes {
		v.assumedVolumes[o.Name] = o
	}
	for _, o := range plan.Claims {
		v.assumedClaims[o.Name] = o
	}
	v.plans[p.Object.UID] = plan
	v.waits[p.Object.UID] = wait{p.Object, node, v.s.c.w.Now.Add(volumeTimeout)}
	for _, o := range plan.Volumes {
		if err := v.Write(v.s.c.client, volume.Write{Volume: o}); err != nil {
			return false, err
		}
	}
	for _, o := range plan.Claims {
		if err := v.Write(v.s.c.client, volume.Write{Claim: o}); err != nil {
			return false, err
		}
	}
	return false, nil
}

// forget drops the decisions about the volumes of a pod; what is written stays (S2.24).
func (v *volumes) forget(pod types.UID) {
	if v == nil {
		return
	}
	if plan := v.plans[pod]; plan != nil {
		for _, o := range plan.Volumes {
			delete(v.assumedVolumes, o.Name)
		}
		for _, o := range plan.Claims {
			delete(v.assumedClaims, o.Name)
		}
	}
	delete(v.plans, pod)
	delete(v.waits, pod)
}

// bindReady binds the pods whose volumes are bound now, and tries those again that cannot be bound. It returns false
// if the process has ended.
func (v *volumes) bindReady() bool {
	if v == nil {
		return true
	}
	for _, uid := range sorted(v.waits) {
		w := v.waits[uid]
		n := v.s.snapshot.Node(w.node)
		var done bool
		var err error
		if n == nil {
			err = fakeapi.ErrMissing
		} else if done, err = v.plans[uid].Bound(v.View, n.Object); !done && err == nil {
			if v.s.c.w.Now.Before(w.until) {
				continue
			}
			err = fakeapi.ErrLost
		}
		v.forget(uid)
		if err != nil {
			v.s.undo(w.pod)
		} else if !v.s.bind(w.pod, w.node) {
			return false
		}
	}
	return true
}
