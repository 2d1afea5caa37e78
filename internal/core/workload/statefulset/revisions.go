package statefulset

import (
	"bytes"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload/revision"
)

// RevisionPlan is the change to the revisions that precedes the plan for pods.
type RevisionPlan struct {
	// Update is the revision of the set's template. With Create it must be created.
	Update *appsv1.ControllerRevision
	Create bool
	// Raise is the new revision number of Update after a rollback, or 0.
	Raise int64
}

// Revise finds or creates the revision of the set's template (W3.23, W3.24). collisions is the collision count of the
// set. defaulted applies the API server's defaults.
func Revise(set *appsv1.StatefulSet, revisions []*appsv1.ControllerRevision, collisions int32,
	defaulted func(*appsv1.StatefulSet)) (RevisionPlan, error) {
	data, err := revision.Data(&set.Spec.Template)
	if err != nil {
		return RevisionPlan{}, err
	}
	revisions = revision.Sorted(revisions)
	var newest *appsv1.ControllerRevision
	if n := len(revisions); n > 0 {
		newest = revisions[n-1]
	}
	next := revision.Highest(revisions) + 1
	for _, same := range slices.Backward(revisions) {
		if !revision.Holds(same, data) {
			continue
		}
		r := RevisionPlan{Update: same}
		if !bytes.Equal(newest.Data.Raw, data) {
			r.Raise = next
		}
		return r, nil
	}
	if newest != nil && restores(set, newest, data, defaulted) {
		return RevisionPlan{Update: newest}, nil
	}
	hash := revision.Hash(data, &collisions)
	return RevisionPlan{Update: revision.New(set, Kind(), &set.Spec.Template, data, next, revision.HashLabel, hash),
		Create: true}, nil
}

// Rename renames a revision for another collision count (W3.22).
func Rename(set *appsv1.StatefulSet, r *appsv1.ControllerRevision, collisions int32) {
	hash := revision.Hash(r.Data.Raw, &collisions)
	r.Name, r.Labels[revision.HashLabel] = revision.Name(set.Name, hash), hash
}

// restores reports whether a revision restores the set's template after defaulting, so that an upgrade that adds a
// default does not roll pods (W3.24).
func restores(set *appsv1.StatefulSet, r *appsv1.ControllerRevision, data []byte,
	defaulted func(*appsv1.StatefulSet)) bool {
	t, err := revision.Restore(&set.Spec.Template, r.Data.Raw)
	if err != nil || defaulted == nil {
		return false
	}
	back := set.DeepCopy()
	back.Spec.Template = *t
	defaulted(back)
	again, err := revision.Data(&back.Spec.Template)
	return err == nil && bytes.Equal(again, data)
}

// Current returns the revision that status.currentRevision names, or else the update revision (W3.25).
func Current(set *appsv1.StatefulSet, revisions []*appsv1.ControllerRevision,
	update *appsv1.ControllerRevision) *appsv1.ControllerRevision {
	for _, r := range revisions {
		if r.Name == set.Status.CurrentRevision {
			return r
		}
	}
	return update
}

// Excess returns the revisions beyond the history limit, lowest number first. The current and the update revision and
// revisions of existing pods are kept (W3.26). A negative limit keeps all (W3.3).
func Excess(set *appsv1.StatefulSet, revisions []*appsv1.ControllerRevision, current, update *appsv1.ControllerRevision,
	pods []*corev1.Pod) []*appsv1.ControllerRevision {
	live := map[string]bool{current.Name: true, update.Name: true}
	for _, p := range pods {
		live[revisionOf(p)] = true
	}
	var history []*appsv1.ControllerRevision
	for _, r := range revision.Sorted(revisions) {
		if !live[r.Name] {
			history = append(history, r)
		}
	}
	limit := int32(10)
	if set.Spec.RevisionHistoryLimit != nil {
		limit = *set.Spec.RevisionHistoryLimit
	}
	if limit < 0 || len(history) <= int(limit) {
		return nil
	}
	return history[:len(history)-int(limit)]
}
