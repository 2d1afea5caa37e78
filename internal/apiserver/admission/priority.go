package admission

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"carob/internal/core/resources"
)

var priorityClasses = schedulingv1.Resource("priorityclasses")

// priority sets the number of a pod's priority class, and keeps the default class unique (L1.30).
type priority struct{ reader Reader }

func (priority) Handles(op admission.Operation) bool {
	return on{create: true, update: true, remove: true}.handles(op)
}

func (pl priority) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	p := podOf(a)
	if p == nil || a.GetOperation() == admission.Delete {
		return nil
	}
	if a.GetOperation() == admission.Update {
		// A client that does not know the fields must not clear them.
		if old, ok := a.GetOldObject().(*corev1.Pod); ok {
			if p.Spec.Priority == nil {
				p.Spec.Priority = old.Spec.Priority
			}
			if p.Spec.PreemptionPolicy == nil {
				p.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
			}
		}
		return nil
	}
	class, err := pl.class(ctx, p.Spec.PriorityClassName)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return admission.NewForbidden(a,
				fmt.Errorf("no PriorityClass with name %v was found", p.Spec.PriorityClassName))
		}
		return err
	}
	value, policy := int32(0), corev1.PreemptLowerPriority
	if class != nil {
		p.Spec.PriorityClassName, value = class.Name, class.Value
		if class.PreemptionPolicy != nil {
			policy = *class.PreemptionPolicy
		}
	}
	if p.Spec.Priority != nil && *p.Spec.Priority != value {
		return admission.NewForbidden(a,
			fmt.Errorf(
				"the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *p.Spec.Priority, value))
	}
	if p.Spec.PreemptionPolicy != nil && *p.Spec.PreemptionPolicy != policy {
		return admission.NewForbidden(a,
			fmt.Errorf(
				"the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *p.Spec.PreemptionPolicy, policy))
	}
	p.Spec.Priority, p.Spec.PreemptionPolicy = &value, &policy
	return nil
}

// class returns the class of that name, or for no name the default class (nil if there is none).
func (pl priority) class(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
	if name != "" {
		obj, err := pl.reader.Get(ctx, priorityClasses, "", name)
		if err != nil {
			return nil, err
		}
		class, _ := obj.(*schedulingv1.PriorityClass)
		return class, nil
	}
	var found *schedulingv1.PriorityClass
	err := pl.reader.List(ctx, priorityClasses, "", func(o runtime.Object) bool {
		// Two defaults can only result from a race; the lower one is safer.
		if c, ok := o.(*schedulingv1.PriorityClass); ok && c.GlobalDefault && (found == nil || c.Value < found.Value) {
			found = c
		}
		return true
	})
	return found, err
}

func (pl priority) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Delete {
		if _, system := resources.SystemPriority(a.GetName()); system &&
			a.GetResource().GroupResource() == priorityClasses {
			return admission.NewForbidden(a, errors.New("this is a system priority class and cannot be deleted"))
		}
		return nil
	}
	class, ok := a.GetObject().(*schedulingv1.PriorityClass)
	if !ok || !class.GlobalDefault || a.GetSubresource() != "" {
		return nil
	}
	existing, err := pl.class(ctx, "")
	if err != nil {
		return err
	}
	if existing != nil && existing.Name != class.Name {
		return admission.NewForbidden(a,
			fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist", existing.Name))
	}
	return nil
}
