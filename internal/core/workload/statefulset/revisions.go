package statefulset

import (
	"bytes"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload/revision"
)

// Revising is what has to happen to the revisions before pods are looked at.
type Revising struct {
	// Update is the revision of the set's template; with Create it has to be created.
	Update *appsv1.ControllerRevision
	Create bool
	// Raise is the number that Update has to get, because the set went back to it; 0 when it has the right one.
	Raise int64
}

// Revise finds the revision of the set's template among those of the set, or makes one (W3.23, W3.24). collisions is
// how often names were taken. defaulted fills in what a template leaves out, as the API server does.
func Revise(set *appsv1.StatefulSet, revisions []*appsv1.ControllerRevision, collisions int32, defaulted func(*appsv1.StatefulSet)) (Revising, error) {
	data, err := revision.Data(&set.Spec.Template)
	if err != nil {
		return Revising{}, err
	}
	revisions = revision.Sorted(revisions)
	var newest *appsv1.ControllerRevision
	if n := len(revisions); n > 0 {
		newest = revisions[n-1]
	}
	next := revision.Highest(revisions) + 1
	for i := len(revisions) - 1; i >= 0; i-- {
		if !revision.Holds(revisions[i], data) {
			continue
		}
		r := Revising{Update: revisions[i]}
		if !bytes.Equal(newest.Data.Raw, data) {
			r.Raise = next
		}
		return r, nil
	}
	if newest != nil && comesTo(set, newest, data, defaulted) {
		return Revising{Update: newest}, nil
	}
	hash := revision.Hash(data, &collisions)
	return Revising{Update: revision.New(set, Kind(), &set.Spec.Template, data, next, revision.HashLabel, hash), Create: true}, nil
}

// Rename gives a revision whose name is taken the name for another count of collisions (W3.22).
func Rename(set *appsv1.StatefulSet, r *appsv1.ControllerRevision, collisions int32) {
	hash := revision.Hash(r.Data.Raw, &collisions)
	r.Name, r.Labels[revision.HashLabel] = revision.Name(set.Name, hash), hash
}

// comesTo reports whether going back to a revision would change nothing once its template has the defaults of this
// version, so that an upgrade that adds one rolls no pods (W3.24).
func comesTo(set *appsv1.StatefulSet, r *appsv1.ControllerRevision, data []byte, defaulted func(*appsv1.StatefulSet)) bool {
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

// Current is the revision that status.currentRevision names; the update revision when there is none (W3.25).
func Current(set *appsv1.StatefulSet, revisions []*appsv1.ControllerRevision, update *appsv1.ControllerRevision) *appsv1.ControllerRevision {
	for _, r := range revisions {
		if r.Name == set.Status.CurrentRevision {
			return r
		}
	}
	return update
}

// Excess are the revisions that the history limit leaves no room for, lowest number first. One that a pod was made
// from, or that is current or to come, stays (W3.26). A negative limit keeps all (W3.3).
func Excess(set *appsv1.StatefulSet, revisions []*appsv1.ControllerRevision, current, update *appsv1.ControllerRevision, pods []*corev1.Pod) []*appsv1.ControllerRevision {
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
