package garbage

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// OwnerState is what is stored where an owner reference points.
type OwnerState int

// Owner states.
const (
	// Unknown: nobody can say, because the kind is not served or can't own such an object.
	Unknown OwnerState = iota
	// Present: the owner is there (perhaps being deleted, but not in the foreground).
	Present
	// Absent: there is nothing of that name, or something with another UID.
	Absent
	// WaitsForDependents: the owner is being deleted in the foreground.
	WaitsForDependents
)

// Input is everything Decide may look at.
type Input struct {
	Object Object
	// Owners holds a state for each of Object.Owners, in their order. They need not
	// be known for an object that is being deleted.
	Owners     []OwnerState
	Dependents []Object
}

// Action is what to do with the object; the zero value is nothing.
type Action struct {
	// SetOwners, when not nil, is to be stored as the object's owner references first.
	SetOwners []metav1.OwnerReference
	// Delete, when not empty, is how to delete the object then.
	Delete metav1.DeletionPropagation
	// Release are the dependents to take the reference to this object from,
	// before RemoveFinalizer, when not empty, is taken from this object.
	Release         []Object
	RemoveFinalizer string
	// Look are the UIDs of objects that have to be looked at for this one to go on.
	Look []types.UID
}

// Decide says what must happen to an object. The same input gives the same action.
func Decide(in Input) Action {
	o := in.Object
	switch {
	case o.Deleting && o.Orphan:
		return Action{Release: in.Dependents, RemoveFinalizer: metav1.FinalizerOrphanDependents}
	case o.Waiting():
		return wait(in)
	case o.Deleting || len(o.Owners) == 0 || slices.Contains(in.Owners, Unknown):
		return Action{}
	}
	waits := slices.Contains(in.Owners, WaitsForDependents)
	switch {
	case slices.Contains(in.Owners, Present):
		return keep(in)
	case waits && len(in.Dependents) > 0:
		a := Action{Delete: metav1.DeletePropagationForeground}
		if slices.ContainsFunc(in.Dependents, func(d Object) bool { return d.Waiting() }) {
			// Perhaps a circle: each would wait for the next for ever.
			a.SetOwners = unblocked(o.Owners)
		}
		return a
	case o.Orphan:
		return Action{Delete: metav1.DeletePropagationOrphan}
	case o.Foreground:
		return Action{Delete: metav1.DeletePropagationForeground}
	}
	return Action{Delete: metav1.DeletePropagationBackground}
}

// wait: an object deleted in the foreground goes when no dependent blocks it.
func wait(in Input) Action {
	blocked := false
	var a Action
	for _, d := range in.Dependents {
		if !in.Object.BlockedBy(d) {
			continue
		}
		blocked = true
		if !d.Waiting() {
			a.Look = append(a.Look, d.UID)
		}
	}
	if !blocked {
		a.RemoveFinalizer = metav1.FinalizerDeleteDependents
	}
	return a
}

// keep: with one owner left an object stays, but must not hold up those that go.
func keep(in Input) Action {
	if !slices.Contains(in.Owners, Absent) && !slices.Contains(in.Owners, WaitsForDependents) {
		return Action{}
	}
	a := Action{SetOwners: []metav1.OwnerReference{}}
	for i, r := range in.Object.Owners {
		if in.Owners[i] == Present {
			a.SetOwners = append(a.SetOwners, r)
		}
	}
	return a
}

// unblocked returns the references without the wish that owners wait; nil when none has it.
func unblocked(refs []metav1.OwnerReference) []metav1.OwnerReference {
	out := slices.Clone(refs)
	changed := false
	for i := range out {
		if b := out[i].BlockOwnerDeletion; b != nil && *b {
			out[i].BlockOwnerDeletion, changed = new(false), true
		}
	}
	if !changed {
		return nil
	}
	return out
}
