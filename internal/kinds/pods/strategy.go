package pods

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"carob/internal/core/resources"
	"carob/internal/kinds/declarative"
	"carob/internal/kinds/disabledfields"
	"carob/internal/kinds/unchanged"
)

// Strategy is the strategy of a pod for create, update of the main resource, and delete.
type Strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	declarative.Once
}

// NewStrategy returns the strategy of the main resource; typer returns the kinds of objects.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator}
}

// NamespaceScoped implements rest.RESTCreateStrategy.
func (Strategy) NamespaceScoped() bool { return true }

// AllowCreateOnUpdate is false: a PUT never creates a pod (L1.1).
func (Strategy) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate is true: a PUT without a resource version updates the newest one (L1.1).
func (Strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// Canonicalize implements rest.RESTCreateStrategy; there is nothing to do.
func (Strategy) Canonicalize(runtime.Object) {}

// PrepareForCreate sets the first generation and status of a pod (L1.3–L1.6).
func (Strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	p := obj.(*corev1.Pod)
	p.Generation = 1
	disabledfields.PodSpec(&p.Spec, nil)
	defaultPodResources(&p.Spec)
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: resources.ComputeQoS(p)}
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			LastTransitionTime: metav1.Now(),
			Message:            "Scheduling is blocked due to non-empty scheduling gates",
		}}
	}
	mergeLabelKeys(p)
	adoptAppArmor(ctx, p)
}

// PrepareForUpdate keeps the stored status and increments the generation if the spec changes
// (L1.60).
func (Strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, o := obj.(*corev1.Pod), old.(*corev1.Pod)
	p.Status = o.Status
	if p.Spec.Resources == nil { // otherwise a client without the field would remove it
		p.Spec.Resources = o.Spec.Resources.DeepCopy()
	}
	disabledfields.PodSpec(&p.Spec, &o.Spec)
	bumpGeneration(p, o)
}

// bumpGeneration increments the generation if the spec has changed (L1.60).
func bumpGeneration(p, old *corev1.Pod) {
	if !unchanged.Meaning(&p.Spec, &old.Spec) {
		p.Generation = old.Generation + 1
	}
}

// Validate implements rest.RESTCreateStrategy.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return ValidatePodCreate(obj.(*corev1.Pod))
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return ValidatePodUpdate(obj.(*corev1.Pod), old.(*corev1.Pod))
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (Strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	return PodWarnings(obj.(*corev1.Pod))
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy, because programs update pods often.
func (Strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// CheckGracefulDelete sets the grace period of a deletion (L1.90).
func (Strategy) CheckGracefulDelete(_ context.Context, obj runtime.Object, options *metav1.DeleteOptions) bool {
	if options == nil {
		return false
	}
	p := obj.(*corev1.Pod)
	var period int64
	switch {
	case p.Spec.NodeName == "", p.Status.Phase == corev1.PodFailed, p.Status.Phase == corev1.PodSucceeded:
		// No container runs, so no grace period is needed.
	case options.GracePeriodSeconds != nil:
		period = *options.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}
	if period < 0 {
		period = 1
	}
	options.GracePeriodSeconds = &period
	return true
}

// GetResetFields declares that the main resource never changes the status.
func (Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return resetFields(fieldpath.MakePathOrDie("status"))
}

func resetFields(paths ...fieldpath.Path) map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{"v1": fieldpath.NewSet(paths...)}
}

// StatusStrategy is the status subresource: spec and identity stay as stored (L1.70).
type StatusStrategy struct{ Strategy }

// PrepareForUpdate implements rest.RESTUpdateStrategy: only the status changes.
func (StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, o := obj.(*corev1.Pod), old.(*corev1.Pod)
	p.Spec = o.Spec
	p.DeletionTimestamp = o.DeletionTimestamp
	p.OwnerReferences = o.OwnerReferences
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = o.Status.QOSClass
	}
	disabledfields.PodStatus(&p.Status, &o.Status)
	keepObservedGeneration(p, o)
	keepClaimStatuses(p, o)
	syncAddresses(&p.Status)
}

// syncAddresses makes podIP the first of podIPs, independent of which of them the client set.
func syncAddresses(s *corev1.PodStatus) {
	switch {
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	case len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	}
}

// keepObservedGeneration keeps observedGeneration if the client, which may be older than the field,
// left it out (L1.71).
func keepObservedGeneration(p, old *corev1.Pod) {
	if p.Status.ObservedGeneration == 0 {
		p.Status.ObservedGeneration = old.Status.ObservedGeneration
	}
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		if c.ObservedGeneration != 0 {
			continue
		}
		for j := range old.Status.Conditions {
			if oc := &old.Status.Conditions[j]; oc.Type == c.Type {
				c.ObservedGeneration = oc.ObservedGeneration
				break
			}
		}
	}
}

// keepClaimStatuses keeps the resource claim status, which other components write, when an agent
// writes a whole status (L1.70).
func keepClaimStatuses(p, old *corev1.Pod) {
	if p.Status.ResourceClaimStatuses == nil {
		p.Status.ResourceClaimStatuses = old.Status.ResourceClaimStatuses
	}
	if p.Status.ExtendedResourceClaimStatus == nil {
		p.Status.ExtendedResourceClaimStatus = old.Status.ExtendedResourceClaimStatus
	}
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return ValidatePodStatusUpdate(obj.(*corev1.Pod), old.(*corev1.Pod))
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (StatusStrategy) WarningsOnUpdate(_ context.Context, obj, _ runtime.Object) []string {
	return PodStatusWarnings(obj.(*corev1.Pod))
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return resetFields(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata", "deletionTimestamp"),
		fieldpath.MakePathOrDie("metadata", "ownerReferences"))
}

// EphemeralStrategy is the ephemeralcontainers subresource: only that list may change (L1.115).
type EphemeralStrategy struct{ Strategy }

// PrepareForUpdate implements rest.RESTUpdateStrategy: only ephemeral containers change.
func (EphemeralStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, o := obj.(*corev1.Pod), old.(*corev1.Pod)
	wanted := p.Spec.EphemeralContainers
	p.Spec, p.Status = o.Spec, o.Status
	metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &o.ObjectMeta)
	p.Spec.EphemeralContainers = wanted
	disabledfields.PodSpec(&p.Spec, &o.Spec)
	bumpGeneration(p, o)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (EphemeralStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return ValidateEphemeralContainersUpdate(obj.(*corev1.Pod), old.(*corev1.Pod))
}

// ResizeStrategy is the resize subresource: only resources and resize policies may change (L1.116).
type ResizeStrategy struct{ Strategy }

// PrepareForUpdate implements rest.RESTUpdateStrategy: only resources change.
func (ResizeStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, o := obj.(*corev1.Pod), old.(*corev1.Pod)
	metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &o.ObjectMeta)
	wanted := p.Spec
	p.Spec, p.Status = o.Spec, o.Status
	p.Spec.Containers = resized(wanted.Containers, o.Spec.Containers)
	p.Spec.InitContainers = resized(wanted.InitContainers, o.Spec.InitContainers)
	if wanted.Resources != nil { // otherwise the client does not support pod-level resources
		p.Spec.Resources = wanted.Resources
	}
	defaultPodResources(&p.Spec)
	bumpGeneration(p, o)
}

// resized returns the stored containers with the resources and resize policies of the requested
// ones. If containers were added, removed, or reordered, it returns the requested list, which
// validation rejects.
func resized(wanted, stored []corev1.Container) []corev1.Container {
	if len(wanted) != len(stored) {
		return wanted
	}
	out := make([]corev1.Container, len(stored))
	for i := range stored {
		if wanted[i].Name != stored[i].Name {
			return wanted
		}
		out[i] = stored[i]
		out[i].Resources, out[i].ResizePolicy = wanted[i].Resources, wanted[i].ResizePolicy
	}
	return out
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (ResizeStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return ValidatePodResize(obj.(*corev1.Pod), old.(*corev1.Pod))
}

// adoptAppArmor copies the deprecated annotations of containers without a profile to the field, and
// warns the client about them (L1.6).
func adoptAppArmor(ctx context.Context, p *corev1.Pod) {
	if p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows {
		return
	}
	var podProfile *corev1.AppArmorProfile
	if p.Spec.SecurityContext != nil {
		podProfile = p.Spec.SecurityContext.AppArmorProfile
	}
	one := func(c *corev1.Container) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		value, annotated := p.Annotations[key]
		if !annotated || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			return
		}
		parsed := ParseAppArmorAnnotation(value)
		if parsed != nil && apiequality.Semantic.DeepEqual(parsed, podProfile) {
			return
		}
		warning.AddWarning(ctx, "",
			fmt.Sprintf(`metadata.annotations[%s]: deprecated since v1.30; use the "appArmorProfile" field instead`,
				key))
		if parsed == nil {
			return
		}
		if c.SecurityContext == nil {
			c.SecurityContext = &corev1.SecurityContext{}
		}
		c.SecurityContext.AppArmorProfile = parsed
	}
	for i := range p.Spec.InitContainers {
		one(&p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		one(&p.Spec.Containers[i])
	}
}

// mergeLabelKeys resolves matchLabelKeys and mismatchLabelKeys with the pod's own labels (L1.5).
func mergeLabelKeys(p *corev1.Pod) {
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range required {
			mergeTerm(p.Labels, &required[i])
		}
		for i := range preferred {
			mergeTerm(p.Labels, &preferred[i].PodAffinityTerm)
		}
	}
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			terms(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
				a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a.PodAntiAffinity != nil {
			terms(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
				a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		if c.LabelSelector != nil {
			requireKeys(c.LabelSelector, p.Labels, c.MatchLabelKeys, metav1.LabelSelectorOpIn)
		}
	}
}

func mergeTerm(podLabels map[string]string, t *corev1.PodAffinityTerm) {
	if t.LabelSelector == nil {
		return
	}
	requireKeys(t.LabelSelector, podLabels, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
	requireKeys(t.LabelSelector, podLabels, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
}

// requireKeys adds a requirement for each key for which the pod has a label.
func requireKeys(s *metav1.LabelSelector, podLabels map[string]string, keys []string, op metav1.LabelSelectorOperator) {
	for _, key := range keys {
		if value, ok := podLabels[key]; ok {
			s.MatchExpressions = append(s.MatchExpressions,
				metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
		}
	}
}
