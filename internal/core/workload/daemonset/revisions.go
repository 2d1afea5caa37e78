package daemonset

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload"
	"carob/internal/core/workload/revision"
)

// RevisionPlan lists the changes to revisions that precede the plan for pods, in this order.
type RevisionPlan struct {
	// Label are revisions without the hash label, which is set to their name.
	Label []*appsv1.ControllerRevision
	// Current is the revision of the set's template. With Create it must be created.
	Current *appsv1.ControllerRevision
	Create  bool
	// Relabel are pods with the hash of a duplicate; they get the hash of Current.
	Relabel []*corev1.Pod
	// Duplicates have the same data as Current and are deleted.
	Duplicates []*appsv1.ControllerRevision
	// Raise is the new revision number of Current, or 0.
	Raise int64
	// Old are all other revisions.
	Old []*appsv1.ControllerRevision
}

// HashOf returns the hash label of a revision, or its name without one.
func HashOf(r *appsv1.ControllerRevision) string {
	if h, ok := r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]; ok {
		return h
	}
	return r.Name
}

// Revise finds or creates the revision of the set's template (W4.60a, W4.60b).
func Revise(set *appsv1.DaemonSet, revisions []*appsv1.ControllerRevision, pods []*corev1.Pod) (RevisionPlan, error) {
	data, err := revision.Data(&set.Spec.Template)
	if err != nil {
		return RevisionPlan{}, err
	}
	var r RevisionPlan
	for _, x := range revision.Sorted(revisions) {
		if _, ok := x.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]; !ok {
			r.Label = append(r.Label, x)
		}
		switch {
		case !revision.Holds(x, data):
			r.Old = append(r.Old, x)
		default:
			if r.Current != nil {
				r.Duplicates = append(r.Duplicates, r.Current)
			}
			r.Current = x // the one with the highest number stays
		}
	}
	next := revision.Highest(r.Old) + 1
	if r.Current == nil {
		hash := workload.TemplateHash(&set.Spec.Template, set.Status.CollisionCount)
		r.Current, r.Create = revision.New(set, Kind(), &set.Spec.Template, data, next,
			appsv1.DefaultDaemonSetUniqueLabelKey, hash), true
		return r, nil
	}
	if r.Current.Revision < next {
		r.Raise = next
	}
	for _, d := range r.Duplicates {
		for _, p := range pods {
			if h := p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]; h == HashOf(d) && h != HashOf(r.Current) {
				r.Relabel = append(r.Relabel, p)
			}
		}
	}
	return r, nil
}

// Same reports whether a stored revision has the data of the one to create.
func Same(stored, wanted *appsv1.ControllerRevision) bool {
	return revision.Holds(stored, wanted.Data.Raw)
}

// Excess returns the old revisions beyond the history limit, lowest number first. Revisions of existing pods are kept
// (W4.60c).
func Excess(set *appsv1.DaemonSet, old []*appsv1.ControllerRevision, pods []*corev1.Pod) []*appsv1.ControllerRevision {
	limit := 10
	if set.Spec.RevisionHistoryLimit != nil {
		limit = int(*set.Spec.RevisionHistoryLimit)
	}
	live := map[string]bool{}
	for _, p := range pods {
		live[p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	var list []*appsv1.ControllerRevision
	over := len(old) - limit
	for _, r := range revision.Sorted(old) {
		if len(list) < over && !live[HashOf(r)] {
			list = append(list, r)
		}
	}
	return list
}
