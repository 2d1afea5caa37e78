package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"

	"carob/internal/core/resources"
)

var (
	limitRanges            = corev1.Resource("limitranges")
	persistentVolumeClaims = corev1.Resource("persistentvolumeclaims")
)

const limitRangerAnnotation = "kubernetes.io/limit-ranger"

// limitRanger sets and limits the resources of pods and claims by the limit ranges of their
// namespace (L1.26).
type limitRanger struct{ reader Reader }

func (limitRanger) Handles(op admission.Operation) bool {
	return on{create: true, update: true}.handles(op)
}

// ranges returns the limit ranges of the request's namespace, ordered by name.
func (l limitRanger) ranges(ctx context.Context, a admission.Attributes) ([]*corev1.LimitRange, error) {
	var list []*corev1.LimitRange
	err := l.reader.List(ctx, limitRanges, a.GetNamespace(), func(o runtime.Object) bool {
		if r, ok := o.(*corev1.LimitRange); ok && r.DeletionTimestamp == nil {
			list = append(list, r)
		}
		return true
	})
	slices.SortFunc(list, func(a, b *corev1.LimitRange) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

func (l limitRanger) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	p := newPod(a)
	if p == nil || isMirror(p) {
		return nil
	}
	list, err := l.ranges(ctx, a)
	if err != nil {
		return err
	}
	for _, r := range list {
		applyDefaults(p, r)
	}
	return nil
}

// applyDefaults sets the default requests and limits of each container that lacks them.
func applyDefaults(p *corev1.Pod, r *corev1.LimitRange) {
	limits, requests := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range r.Spec.Limits {
		if it := &r.Spec.Limits[i]; it.Type == corev1.LimitTypeContainer {
			maps.Copy(limits, it.Default)
			maps.Copy(requests, it.DefaultRequest)
		}
	}
	if len(limits)+len(requests) == 0 {
		return
	}
	var entries []string
	fill := func(kind string, c *corev1.Container) {
		for _, l := range []struct {
			name string
			dst  *corev1.ResourceList
			src  corev1.ResourceList
		}{{"request", &c.Resources.Requests, requests}, {"limit", &c.Resources.Limits, limits}} {
			var set []string
			for _, name := range slices.Sorted(maps.Keys(l.src)) {
				if _, ok := (*l.dst)[name]; ok {
					continue
				}
				if *l.dst == nil {
					*l.dst = corev1.ResourceList{}
				}
				(*l.dst)[name] = l.src[name].DeepCopy()
				set = append(set, string(name))
			}
			if len(set) > 0 {
				entries = append(entries, fmt.Sprintf("%s %s for %s %s", strings.Join(set, ", "), l.name, kind, c.Name))
			}
		}
	}
	for i := range p.Spec.Containers {
		fill("container", &p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		fill("init container", &p.Spec.InitContainers[i])
	}
	if len(entries) == 0 {
		return
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[limitRangerAnnotation] = "LimitRanger plugin set: " + strings.Join(entries, "; ")
}

func (l limitRanger) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	var check func(*corev1.LimitRangeItem) []error
	switch o := a.GetObject().(type) {
	case *corev1.Pod:
		// Resources of a stored pod change only through resize.
		if a.GetResource().GroupResource() != podResource || a.GetOperation() == admission.Update &&
			a.GetSubresource() != "resize" ||
			a.GetOperation() == admission.Create && a.GetSubresource() != "" {
			return nil
		}
		check = func(it *corev1.LimitRangeItem) []error { return podLimits(o, it) }
	case *corev1.PersistentVolumeClaim:
		if a.GetResource().GroupResource() != persistentVolumeClaims || a.GetSubresource() != "" {
			return nil
		}
		check = func(it *corev1.LimitRangeItem) []error {
			if it.Type != corev1.LimitTypePersistentVolumeClaim {
				return nil
			}
			b := bounds{kind: it.Type, requests: o.Spec.Resources.Requests, limits: o.Spec.Resources.Limits}
			return append(b.minimum(it), b.maximum(it, true)...)
		}
	default:
		return nil
	}
	list, err := l.ranges(ctx, a)
	if err != nil {
		return err
	}
	for _, r := range list {
		var errs []error
		for i := range r.Spec.Limits {
			errs = append(errs, check(&r.Spec.Limits[i])...)
		}
		if len(errs) > 0 {
			return admission.NewForbidden(a, utilerrors.NewAggregate(errs))
		}
	}
	return nil
}

func podLimits(p *corev1.Pod, it *corev1.LimitRangeItem) []error {
	var errs []error
	switch it.Type {
	case corev1.LimitTypeContainer:
		containers(p, func(c *corev1.Container) {
			errs = append(errs,
				bounds{kind: it.Type, requests: c.Resources.Requests, limits: c.Resources.Limits}.check(it)...)
		})
	case corev1.LimitTypePod:
		errs = bounds{kind: it.Type, requests: resources.SpecRequests(p), limits: resources.SpecLimits(p)}.check(it)
	}
	return errs
}

// bounds are the resources of one limited object.
type bounds struct {
	kind             corev1.LimitType
	requests, limits corev1.ResourceList
}

func (b bounds) check(it *corev1.LimitRangeItem) []error {
	errs := b.minimum(it)
	errs = append(errs, b.maximum(it, false)...)
	return append(errs, b.ratio(it)...)
}

func (b bounds) minimum(it *corev1.LimitRangeItem) []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(it.Min)) {
		low := it.Min[name]
		request, requested := b.requests[name]
		limit, limited := b.limits[name]
		switch {
		case !requested:
			errs = append(errs,
				fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, b.kind, low.String()))
		case request.Cmp(low) < 0:
			errs = append(errs,
				fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, b.kind, low.String(),
					request.String()))
		case limited && limit.Cmp(low) < 0:
			errs = append(errs,
				fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, b.kind, low.String(),
					limit.String()))
		}
	}
	return errs
}

// maximum checks limits, and requests too; claims have requests only.
func (b bounds) maximum(it *corev1.LimitRangeItem, requestsOnly bool) []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(it.Max)) {
		high := it.Max[name]
		request, requested := b.requests[name]
		limit, limited := b.limits[name]
		switch {
		case !requestsOnly && !limited:
			errs = append(errs,
				fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, b.kind, high.String()))
		case !requestsOnly && limit.Cmp(high) > 0:
			errs = append(errs,
				fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, b.kind, high.String(),
					limit.String()))
		case requested && request.Cmp(high) > 0:
			errs = append(errs,
				fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, b.kind, high.String(),
					request.String()))
		}
	}
	return errs
}

func (b bounds) ratio(it *corev1.LimitRangeItem) []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(it.MaxLimitRequestRatio)) {
		most := it.MaxLimitRequestRatio[name]
		request, requested := b.requests[name]
		limit, limited := b.limits[name]
		switch {
		case !requested || request.IsZero():
			errs = append(errs,
				fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0",
					name, b.kind, most.String()))
		case !limited || limit.IsZero():
			errs = append(errs,
				fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name,
					b.kind, most.String()))
		default:
			if got := float(limit) / float(request); got > float(most) {
				errs = append(errs,
					fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, b.kind,
						most.String(), got))
			}
		}
	}
	return errs
}

func float(q resource.Quantity) float64 { return q.AsApproximateFloat64() }
