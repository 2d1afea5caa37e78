package workload

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Owner is the object that children belong to.
type Owner struct {
	metav1.Object
	Kind schema.GroupVersionKind
}

// Reference is the controller reference of the owner's children (W0.20).
func (o Owner) Reference() metav1.OwnerReference { return *metav1.NewControllerRef(o.Object, o.Kind) }

// Owns reports whether an object's controller is this owner, not another object of the same name.
func (o Owner) Owns(child metav1.Object) bool {
	c := metav1.GetControllerOfNoCopy(child)
	return c != nil && c.UID == o.GetUID()
}

// Claims are the children of an owner: Mine are controlled by it and match its selector, Adopt
// should be adopted, Release should be released.
type Claims[T metav1.Object] struct{ Mine, Adopt, Release []T }

// Claim sorts objects by owner (W0.21, W0.23, W0.24). An object belongs to the owner if its
// labels match and fits, unless nil, returns true.
func Claim[T metav1.Object](owner metav1.Object, selector labels.Selector, objects []T, fits func(T) bool) Claims[T] {
	var c Claims[T]
	for _, o := range objects {
		matches := selector.Matches(labels.Set(o.GetLabels())) && (fits == nil || fits(o))
		switch ref := metav1.GetControllerOfNoCopy(o); {
		case o.GetNamespace() != owner.GetNamespace():
		case ref != nil && ref.UID != owner.GetUID():
		case ref != nil && matches:
			c.Mine = append(c.Mine, o)
		case owner.GetDeletionTimestamp() != nil:
		case ref != nil:
			c.Release = append(c.Release, o)
		case matches && o.GetDeletionTimestamp() == nil:
			c.Adopt = append(c.Adopt, o)
		}
	}
	return c
}

// CheckAdoption returns why an owner must not adopt (W0.22): live is the present object of its
// name.
func CheckAdoption(owner Owner, live metav1.Object) error {
	switch {
	case live.GetUID() != owner.GetUID():
		return fmt.Errorf("original %v %v/%v is gone: got uid %v, wanted %v", owner.Kind.Kind, owner.GetNamespace(),
			owner.GetName(), live.GetUID(), owner.GetUID())
	case live.GetDeletionTimestamp() != nil:
		return fmt.Errorf("%v/%v has just been deleted at %v", owner.GetNamespace(), owner.GetName(),
			live.GetDeletionTimestamp())
	}
	return nil
}

// patched is the content of a patch of a child's ownership.
type patched struct {
	Metadata struct {
		UID              types.UID `json:"uid"` // so that another object of this name is not patched
		OwnerReferences  any       `json:"ownerReferences"`
		Finalizers       []string  `json:"finalizers,omitempty"`
		DeleteFinalizers []string  `json:"$deleteFromPrimitiveList/finalizers,omitempty"`
	} `json:"metadata"`
}

// AdoptPatch is the strategic merge patch that makes an object the owner's (W0.21), with finalizers if it adds some.
func AdoptPatch(owner Owner, child metav1.Object, finalizers ...string) []byte {
	var p patched
	p.Metadata.UID, p.Metadata.Finalizers = child.GetUID(), finalizers
	p.Metadata.OwnerReferences = []metav1.OwnerReference{owner.Reference()}
	return encoded(p)
}

// ReleasePatch is the strategic merge patch that removes exactly the owner's reference from an
// object (W0.23), with finalizers if it loses some.
func ReleasePatch(owner, child metav1.Object, finalizers ...string) []byte {
	var p patched
	p.Metadata.UID, p.Metadata.DeleteFinalizers = child.GetUID(), finalizers
	p.Metadata.OwnerReferences = []map[string]string{{"$patch": "delete", "uid": string(owner.GetUID())}}
	return encoded(p)
}

func encoded(p patched) []byte {
	b, err := json.Marshal(p)
	if err != nil {
		panic("workload: a patch of strings: " + err.Error())
	}
	return b
}
