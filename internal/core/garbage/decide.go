package garbage

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// OwnerState is the state of the object that an owner reference points to.
type OwnerState int

// Owner states.
const (
	// Unknown: the kind is not served or cannot own such an object.
	Unknown OwnerState = iota
	// Present: the owner exists (it may be in deletion, but not in the foreground).
	Present
	// Absent: there is no object with that name, or one with another UID.
	Absent
	// WaitsForDependents: the owner is being deleted in the foreground.
	WaitsForDependents
)

// Input holds everything that Decide depends on.
type Input struct {
	Object Object
	// Owners holds a state for each of Object.Owners, in the same order. It is not needed for an
	// object that is being deleted.
	Owners     []OwnerState
	Dependents []Object
}

// Action is what to do with the object; the zero value is nothing.
type Action struct {
	// SetOwners, if not nil, is stored first as the object's owner references.
	SetOwners []metav1.OwnerReference
	// Delete, if not empty, is how to delete the object then.
	Delete metav1.DeletionPropagation
	// Release are the dependents whose reference to this object is removed, before RemoveFinalizer,
	// if not empty, is removed from this object.
	Release         []Object
	RemoveFinalizer string
	// Look holds the UIDs of objects to check so that this one can continue.
	Look []types.UID
}

// Decide returns what must happen to an object. The same input gives the same action.
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
		return keepObject(in)
	case waits && len(in.Dependents) > 0:
		a := Action{Delete: metav1.DeletePropagationForeground}
		if slices.ContainsFunc(in.Dependents, func(d Object) bool { return d.Waiting() }) {
			// There may be a cycle, in which each object would wait for the next for ever.
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

// wait: an object that is deleted in the foreground is removed when no dependent blocks it.
func wait(in Input) Action {
	blocked := false
	var a Action
	for _, d := range in.Dependents {
		if !in.Object.BlockedBy(d) || d.UID == in.Object.UID { // its own owner
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

// keepObject decides for an object that has an owner left: it stays, but must not block the owners that are being
// deleted.
func keepObject(in Input) Action {
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

// unblocked returns the references without blockOwnerDeletion; nil if none has it.
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
