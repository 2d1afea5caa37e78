package volumes

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func validatePersistentVolumeClaim(c *corev1.PersistentVolumeClaim) field.ErrorList {
	return ValidateClaimSpec(&c.Spec, ClaimFaults{}, field.NewPath("spec"))
}

// A claim is immutable, except for what the binder sets, a class set later, and the size and
// attributes of a bound claim.
func validatePersistentVolumeClaimUpdate(c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	spec := field.NewPath("spec")
	errs := ValidateClaimSpec(&c.Spec, faultsOfClaim(&old.Spec), spec)
	rest := c.Spec.DeepCopy()
	if old.Spec.VolumeName == "" {
		rest.VolumeName = ""
	}
	class, annotated := old.Annotations[corev1.BetaStorageClassAnnotation]
	if named := c.Spec.StorageClassName; old.Spec.StorageClassName == nil && named != nil &&
		(!annotated || *named == class) {
		rest.StorageClassName = nil
	}
	if is, has := c.Annotations[corev1.BetaStorageClassAnnotation]; is != class &&
		(has || c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != class) {
		errs = append(errs,
			field.Invalid(field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation), is,
				apivalidation.FieldImmutableErrorMsg))
	}
	is, was := c.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if c.Status.Phase == corev1.ClaimBound {
		rest.VolumeAttributesClassName = old.Spec.VolumeAttributesClassName
		if rest.Resources.Requests != nil {
			rest.Resources.Requests[corev1.ResourceStorage] = was
		}
	}
	if !apiequality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs,
			field.Forbidden(spec,
				fmt.Sprintf(
					"spec is immutable after creation except resources.requests and volumeAttributesClassName "+
						"for bound claims\n%v", rules.Diff(&old.Spec, rest))))
	}
	if have := old.Status.Capacity[corev1.ResourceStorage]; is.Cmp(was) < 0 && is.Cmp(have) <= 0 {
		errs = append(errs, field.Forbidden(spec.Child("resources", "requests", "storage"),
			"field can not be less than status.capacity"))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(c.Spec.VolumeMode, old.Spec.VolumeMode,
		field.NewPath("volumeMode"))...)
	if old.Status.CurrentVolumeAttributesClassName != nil &&
		!apiequality.Semantic.DeepEqual(c.Spec.VolumeAttributesClassName, old.Spec.VolumeAttributesClassName) {
		at := spec.Child("volumeAttributesClassName")
		if a := c.Spec.VolumeAttributesClassName; a == nil {
			errs = append(errs,
				field.Forbidden(at,
					"update to nil is forbidden when status.currentVolumeAttributesClassName is not nil"))
		} else if *a == "" {
			errs = append(errs,
				field.Forbidden(at,
					"update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil"))
		}
	}
	return errs
}

func validatePersistentVolumeClaimStatusUpdate(c, _ *corev1.PersistentVolumeClaim) field.ErrorList {
	at := field.NewPath("status")
	var errs field.ErrorList
	for _, name := range rules.SortedNames(c.Status.Capacity) {
		q := c.Status.Capacity[name]
		errs = append(errs, rules.ValidQuantity(q, at.Child("capacity").Key(string(name)))...)
	}
	if h := c.Status.HealthStatus; h != nil {
		for i, condition := range h.HealthConditions {
			if condition.Reason != "" {
				errs = append(errs,
					rules.Messages(at.Child("healthStatus", "healthConditions").Index(i).Child("reason"),
						condition.Reason, metav1validation.IsValidConditionReason(condition.Reason))...)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Status.AllocatedResourceStatuses)) {
		at := at.Child("allocatedResourceStatuses")
		errs = append(errs, validateClaimResource(name, at)...)
		states := []corev1.ClaimResourceStatus{corev1.PersistentVolumeClaimControllerResizeInProgress,
			corev1.PersistentVolumeClaimControllerResizeInfeasible,
			corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress,
			corev1.PersistentVolumeClaimNodeResizeInfeasible}
		if slices.Sort(states); !slices.Contains(states, c.Status.AllocatedResourceStatuses[name]) {
			errs = append(errs, field.NotSupported(at, corev1.ClaimResourceStatus(name), states))
		}
	}
	for _, name := range rules.SortedNames(c.Status.AllocatedResources) {
		at := at.Child("allocatedResources")
		more := validateClaimResource(name, at)
		if len(more) == 0 {
			q := c.Status.AllocatedResources[name]
			if more = rules.ValidQuantity(q, at.Key(string(name))); name != corev1.ResourceStorage {
				more = rules.AmountOf(corev1.ResourceStorage, q, at.Key(string(name)))
			}
		}
		errs = append(errs, more...)
	}
	return errs
}

// validateClaimResource validates the name of a claim's resource: storage, or an extended resource.
func validateClaimResource(name corev1.ResourceName, at *field.Path) field.ErrorList {
	errs := rules.Messages(at, string(name), validation.IsQualifiedName(string(name)))
	if len(errs) == 0 && name != corev1.ResourceStorage && rules.IsNative(name) {
		errs = append(errs, field.NotSupported(at, name, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	return errs
}

// ValidateClaimSpec validates a volume claim; kept are the errors that it may have.
func ValidateClaimSpec(s *corev1.PersistentVolumeClaimSpec, kept ClaimFaults, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.AccessModes) == 0 {
		errs = append(errs, field.Required(at.Child("accessModes"), "at least 1 access mode is required"))
	}
	errs = append(errs, validateAccessModes(s.AccessModes, at.Child("accessModes"))...)
	if s.Selector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(s.Selector,
			metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: kept.selectorValues},
			at.Child("selector"))...)
	}
	storage, ok := s.Resources.Requests[corev1.ResourceStorage]
	switch key := at.Child("resources").Key(string(corev1.ResourceStorage)); {
	case !ok:
		errs = append(errs, field.Required(key, ""))
	case storage.Sign() <= 0:
		errs = append(errs, field.Invalid(key, storage.String(), "must be greater than zero"))
	}
	if s.StorageClassName != nil && *s.StorageClassName != "" {
		errs = append(errs, rules.Messages(at.Child("storageClassName"), *s.StorageClassName,
			apivalidation.NameIsDNSSubdomain(*s.StorageClassName, false))...)
	}
	errs = append(errs, validateVolumeMode(s.VolumeMode, at.Child("volumeMode"))...)
	errs = append(errs, validateDataSources(s, kept, at)...)
	if c := s.VolumeAttributesClassName; c != nil && *c != "" {
		errs = append(errs, rules.Messages(at.Child("volumeAttributesClassName"), *c,
			apivalidation.NameIsDNSSubdomain(*c, false))...)
	}
	return errs
}

// ClaimFaults are the errors that a claim may have because the stored one has them.
type ClaimFaults struct {
	selectorValues, sourceGroups bool
}

func faultsOfClaim(s *corev1.PersistentVolumeClaimSpec) ClaimFaults {
	kept := ClaimFaults{selectorValues: s.Selector != nil && rules.HasBadLabelValues(s.Selector)}
	bad := func(group *string) bool { return group != nil && len(validation.IsDNS1123Subdomain(*group)) > 0 }
	kept.sourceGroups = s.DataSource != nil && bad(s.DataSource.APIGroup) || s.DataSourceRef != nil &&
		bad(s.DataSourceRef.APIGroup)
	return kept
}

// validateDataSources validates the data source of a volume, in the older field and the newer one.
func validateDataSources(s *corev1.PersistentVolumeClaimSpec, kept ClaimFaults, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	older, newer := s.DataSource, s.DataSourceRef
	if older != nil {
		errs = append(errs, validateDataSource(older.APIGroup, older.Kind, older.Name, kept, at.Child("dataSource"))...)
	}
	if newer == nil {
		return errs
	}
	errs = append(errs, validateDataSource(newer.APIGroup, newer.Kind, newer.Name, kept, at.Child("dataSourceRef"))...)
	elsewhere := newer.Namespace != nil && *newer.Namespace != ""
	if elsewhere {
		errs = append(errs, rules.Messages(at.Child("dataSourceRef", "namespace"), *newer.Namespace,
			apivalidation.ValidateNamespaceName(*newer.Namespace, false))...)
	}
	switch {
	case older == nil:
	case elsewhere:
		errs = append(errs, field.Invalid(at, at.Child("dataSource"),
			"may not be specified when dataSourceRef.namespace is specified"))
	case !apiequality.Semantic.DeepEqual(older.APIGroup, newer.APIGroup) || older.Kind != newer.Kind ||
		older.Name != newer.Name:
		errs = append(errs, field.Invalid(at, at.Child("dataSource"), "must match dataSourceRef"))
	}
	return errs
}

func validateDataSource(group *string, kind, name string, kept ClaimFaults, at *field.Path) field.ErrorList {
	errs := rules.Required(at.Child("name"), name)
	errs = append(errs, rules.Required(at.Child("kind"), kind)...)
	switch {
	case group == nil || *group == "":
		if kind != "PersistentVolumeClaim" {
			errs = append(errs,
				field.Invalid(at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
		}
	case !kept.sourceGroups:
		errs = append(errs, rules.Messages(at.Child("apiGroup"), *group, validation.IsDNS1123Subdomain(*group))...)
	}
	return errs
}

func validateVolumeMode(m *corev1.PersistentVolumeMode, at *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	return rules.Supported(string(*m), at, string(corev1.PersistentVolumeBlock),
		string(corev1.PersistentVolumeFilesystem))
}

func validateAccessModes(modes []corev1.PersistentVolumeAccessMode, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	alone, others := false, false
	for _, m := range modes {
		errs = append(errs, rules.Supported(string(m), at, string(corev1.ReadOnlyMany), string(corev1.ReadWriteMany),
			string(corev1.ReadWriteOnce), string(corev1.ReadWriteOncePod))...)
		if m == corev1.ReadWriteOncePod {
			alone = true
		} else if len(rules.Supported(string(m), at, string(corev1.ReadOnlyMany), string(corev1.ReadWriteMany),
			string(corev1.ReadWriteOnce))) == 0 {
			others = true
		}
	}
	if alone && others {
		errs = append(errs,
			field.Forbidden(at, fmt.Sprintf("may not use %s with other access modes", corev1.ReadWriteOncePod)))
	}
	return errs
}

// ClaimSpecWarnings are warnings about a volume claim.
func ClaimSpecWarnings(s *corev1.PersistentVolumeClaimSpec, at *field.Path) []string {
	var out rules.Warnings
	out.Bytes(s.Resources.Requests, at.Child("resources", "requests"), corev1.ResourceStorage)
	out.Bytes(s.Resources.Limits, at.Child("resources", "limits"), corev1.ResourceStorage)
	return out
}

func persistentVolumeClaimWarnings(c *corev1.PersistentVolumeClaim) []string {
	var out []string
	if _, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		out = append(out, fmt.Sprintf(`%s: deprecated since v1.8; use "storageClassName" attribute instead`,
			field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation)))
	}
	return append(out, ClaimSpecWarnings(&c.Spec, field.NewPath("spec"))...)
}
