package deployment

import (
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"

	"carob/internal/core/workload"
)

const maxInt32 = math.MaxInt32

// roll makes a pass of a rolling update (W2.40).
func (p *pass) roll() {
	if p.now == nil {
		p.create()
	}
	if p.resizeNew() || p.shrinkOld() || !complete(p.d, &p.in.Deployment.Status) {
		return
	}
	p.cleanUp()
}

// room is how large the new set may be: what the bound on all pods leaves (W2.41). Pods that a set
// is to lose count until its status shows that they are gone: their deletion may fail.
func (p *pass) room() int32 {
	now, size := workload.Replicas(p.now), p.size()
	free := size + p.surge() - sum(p.all(), func(s *appsv1.ReplicaSet) int32 {
		return max(workload.Replicas(s), s.Status.Replicas)
	})
	if free <= 0 {
		return now
	}
	return now + min(free, size-now)
}

// resizeNew sets the size of the new set, and reports whether it has changed (W2.41).
func (p *pass) resizeNew() bool {
	now, size := workload.Replicas(p.now), p.size()
	switch {
	case now > size:
		p.resize(p.now, size, false)
	case now < size:
		p.resize(p.now, p.room(), false)
	}
	return workload.Replicas(p.now) != now
}

// shrinkOld scales old sets down, first by unavailable pods, then by others as long as enough are
// available, and reports whether it did (W2.42 to W2.44).
func (p *pass) shrinkOld() bool {
	before := sum(p.old, workload.Replicas)
	budget := sum(p.all(), workload.Replicas) - p.minAvailable() - (workload.Replicas(p.now) - available(p.now))
	if before == 0 || budget <= 0 {
		return false
	}
	shrink := func(s *appsv1.ReplicaSet, by int32) {
		p.resize(s, workload.Replicas(s)-by, false)
		budget -= by
	}
	for _, s := range slices.Clone(p.old) {
		if by := min(budget, workload.Replicas(s)-available(s)); by > 0 {
			shrink(s, by)
		}
	}
	extra := sum(p.all(), available) - p.minAvailable()
	for _, s := range slices.Clone(p.old) {
		if by := min(extra, workload.Replicas(s)); by > 0 {
			shrink(s, by)
			extra -= by
		}
	}
	return sum(p.old, workload.Replicas) != before
}

// recreate makes a pass of a recreation (W2.50): no new pod while there is an old one.
func (p *pass) recreate() {
	shrunk := false
	for _, s := range active(p.old) {
		p.resize(s, 0, false)
		shrunk = true
	}
	if shrunk || p.oldRunning() {
		return
	}
	if p.now == nil {
		p.create()
	}
	p.resize(p.now, p.size(), false)
	if complete(p.d, &p.in.Deployment.Status) {
		p.cleanUp()
	}
}

// oldRunning reports whether an old set has pods, or may get some: its controller may be creating
// them for a size that it has not yet observed to be outdated.
func (p *pass) oldRunning() bool {
	return slices.ContainsFunc(p.old, func(s *appsv1.ReplicaSet) bool {
		return s.Status.Replicas > 0 || s.Status.ObservedGeneration < s.Generation || p.in.Running(s.UID)
	})
}

// scaling reports whether the size of the deployment has changed since its sets were sized (W2.26).
func (p *pass) scaling() bool {
	return slices.ContainsFunc(active(p.all()), func(s *appsv1.ReplicaSet) bool {
		n, ok := count(s, DesiredReplicas)
		return ok && n != p.size()
	})
}

// count returns the number in an annotation.
func count(s *appsv1.ReplicaSet, annotation string) (int32, bool) {
	n, err := strconv.ParseUint(s.Annotations[annotation], 10, 31)
	return int32(n), err == nil //nolint:gosec // 31 bits
}

// scale sizes the sets while no rollout does (W2.60 to W2.63).
func (p *pass) scale() {
	all := active(p.all())
	switch {
	case len(all) == 1:
		// Also if it has that size: its annotation must have the deployment's size, or the size
		// would always seem to have changed, and no rollout would progress.
		p.resize(all[0], p.size(), p.scaling())
	case len(all) == 0:
		if p.now != nil {
			p.resize(p.now, p.size(), false)
		} else if n := len(p.old); n > 0 {
			p.resize(p.old[n-1], p.size(), false)
		}
	case p.saturated():
		for _, s := range active(p.old) {
			p.resize(s, 0, false)
		}
	case p.d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType:
		p.scaleInProportion(all)
	}
}

// saturated reports whether the new set has all pods of the deployment (W2.61).
func (p *pass) saturated() bool {
	if p.now == nil {
		return false
	}
	n, ok := count(p.now, DesiredReplicas)
	return ok && n == p.size() && workload.Replicas(p.now) == p.size() && p.now.Status.AvailableReplicas == p.size()
}

// scaleInProportion spreads a change of size over the sets (W2.62).
func (p *pass) scaleInProportion(sets []*appsv1.ReplicaSet) {
	allowed := int32(0)
	if p.size() > 0 {
		allowed = p.size() + p.surge()
	}
	delta := allowed - sum(sets, workload.Replicas)
	slices.SortFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		switch {
		case workload.Replicas(a) != workload.Replicas(b):
			return int(workload.Replicas(b)) - int(workload.Replicas(a))
		case delta > 0:
			return byAge(b, a)
		}
		return byAge(a, b)
	})
	sizes, left := make([]int32, len(sets)), delta
	for i, s := range sets {
		share := int32(0)
		if delta != 0 && left != 0 {
			share = p.share(s)
			if delta > 0 {
				share = min(share, left)
			} else {
				share = max(share, left)
			}
		}
		sizes[i] = workload.Replicas(s) + share
		left -= share
	}
	if delta != 0 {
		sizes[0] = max(0, sizes[0]+left)
	}
	for i, s := range sets {
		p.resize(s, sizes[i], true)
	}
}

// share returns the change of a set in proportion to its size.
func (p *pass) share(s *appsv1.ReplicaSet) int32 {
	if p.size() == 0 {
		return -workload.Replicas(s)
	}
	before, ok := count(s, MaxReplicas)
	if !ok || before == 0 {
		if before = p.d.Status.Replicas; before == 0 {
			return 0
		}
	}
	size := float64(workload.Replicas(s)) * float64(p.size()+p.surge()) / float64(before)
	return int32(min(math.Round(size), maxInt32)) - workload.Replicas(s)
}
