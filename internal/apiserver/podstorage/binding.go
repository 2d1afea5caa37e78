package podstorage

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	"carob/internal/kinds/pods"
)

var bindingResource = schema.GroupResource{Resource: "pods/binding"}

// bindingREST assigns a pod to a node, once (L1.80, L1.81).
type bindingREST struct{ store *genericregistry.Store }

func (*bindingREST) New() runtime.Object { return &corev1.Binding{} }

func (*bindingREST) Destroy() {}

func (*bindingREST) NamespaceScoped() bool { return true }

func (*bindingREST) GetSingularName() string { return "binding" }

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate keeps uid and resourceVersion of the Binding: they are
// preconditions on the pod (L1.81).
func (*bindingREST) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

func (r *bindingREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	b, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	if b.Name != name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := pods.ValidateBinding(b); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	if validate != nil {
		if err := validate(ctx, b.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := r.assign(ctx, b, dryrun.IsDryRun(options.DryRun)); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// assign writes the node into the pod. It bypasses the update strategy, which would reject a change
// of the node name.
func (r *bindingREST) assign(ctx context.Context, b *corev1.Binding, dryRun bool) error {
	key, err := r.store.KeyFunc(ctx, b.Name)
	if err != nil {
		return err
	}
	var pre *storage.Preconditions
	if b.UID != "" || b.ResourceVersion != "" {
		pre = &storage.Preconditions{}
		if b.UID != "" {
			pre.UID = &b.UID
		}
		if b.ResourceVersion != "" {
			pre.ResourceVersion = &b.ResourceVersion
		}
	}
	err = r.store.Storage.GuaranteedUpdate(ctx, key, &corev1.Pod{}, false, pre,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			p, ok := obj.(*corev1.Pod)
			if !ok {
				return nil, fmt.Errorf("unexpected object: %#v", obj)
			}
			return p, bind(p, b)
		}), dryRun, nil)
	if err == nil {
		return nil
	}
	err = storeerr.InterpretGetError(err, Resource, b.Name)
	err = storeerr.InterpretUpdateError(err, Resource, b.Name)
	if _, ok := errors.AsType[*apierrors.StatusError](err); !ok {
		err = apierrors.NewConflict(bindingResource, b.Name, err)
	}
	return err
}

// bind changes p as the binding says, or returns why it may not (L1.80, L1.81). The generation
// stays.
func bind(p *corev1.Pod, b *corev1.Binding) error {
	switch {
	case p.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", p.Name)
	case p.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", p.Name, p.Spec.NodeName)
	case len(p.Spec.SchedulingGates) > 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", p.Name)
	}
	p.Spec.NodeName = b.Target.Name
	p.Status.NominatedNodeName = ""
	if len(b.Annotations) > 0 {
		if p.Annotations == nil {
			p.Annotations = make(map[string]string, len(b.Annotations))
		}
		maps.Copy(p.Annotations, b.Annotations)
	}
	if len(b.Labels) > 0 {
		if p.Labels == nil {
			p.Labels = make(map[string]string, len(b.Labels))
		}
		maps.Copy(p.Labels, b.Labels)
	}
	setCondition(&p.Status, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	return nil
}

// setCondition writes a condition; its transition time changes only with its status (L1.74).
func setCondition(s *corev1.PodStatus, c corev1.PodCondition) {
	c.LastTransitionTime = metav1.Now()
	for i := range s.Conditions {
		if s.Conditions[i].Type != c.Type {
			continue
		}
		if s.Conditions[i].Status == c.Status {
			c.LastTransitionTime = s.Conditions[i].LastTransitionTime
		}
		s.Conditions[i] = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}

// legacyBindingREST is POST bindings: the name of the pod is in the body.
type legacyBindingREST struct{ binding *bindingREST }

func (*legacyBindingREST) New() runtime.Object { return &corev1.Binding{} }

func (*legacyBindingREST) Destroy() {}

func (*legacyBindingREST) NamespaceScoped() bool { return true }

func (*legacyBindingREST) GetSingularName() string { return "binding" }

func (r *legacyBindingREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	b, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	return r.binding.Create(ctx, b.Name, b, validate, options)
}
