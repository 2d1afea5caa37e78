package pods

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func (k *podChecker) env(list []corev1.EnvVar, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		e, at := &list[i], at.Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, rules.Messages(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))...)
		}
		errs = append(errs, k.envSource(e, at.Child("valueFrom"))...)
	}
	return errs
}

func (k *podChecker) envSource(e *corev1.EnvVar, at *field.Path) field.ErrorList {
	v := e.ValueFrom
	if v == nil {
		return nil
	}
	var errs field.ErrorList
	n := 0
	if v.FieldRef != nil {
		n++
		errs = append(errs, validateFieldRef(v.FieldRef, envFields, at.Child("fieldRef"))...)
	}
	if v.ResourceFieldRef != nil {
		n++
		errs = append(errs, validateResourceFieldRef(v.ResourceFieldRef, false, at.Child("resourceFieldRef"))...)
	}
	if r := v.ConfigMapKeyRef; r != nil {
		n++
		errs = append(errs, validateKeyRef(r.Name, r.Key, at.Child("configMapKeyRef"))...)
	}
	if r := v.SecretKeyRef; r != nil {
		n++
		errs = append(errs, validateKeyRef(r.Name, r.Key, at.Child("secretKeyRef"))...)
	}
	if r := v.FileKeyRef; r != nil {
		n++
		errs = append(errs, k.fileKeyRef(r, at.Child("fileKeyRef"))...)
	}
	switch {
	case n == 0:
		errs = append(errs,
			field.Invalid(at, "",
				"must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case e.Value != "":
		errs = append(errs, field.Invalid(at, "", "may not be specified when `value` is not empty"))
	case n > 1:
		errs = append(errs, field.Invalid(at, "", "may not have more than one field specified at a time"))
	}
	return errs
}

func validateKeyRef(name, key string, at *field.Path) field.ErrorList {
	errs := rules.Messages(at.Child("name"), name, apivalidation.NameIsDNSSubdomain(name, false))
	if key == "" {
		return append(errs, field.Required(at.Child("key"), ""))
	}
	return append(errs, rules.Messages(at.Child("key"), key, validation.IsConfigMapKey(key))...)
}

// fileKeyRef validates a reference to a file in an emptyDir volume of the pod (L1.51).
func (k *podChecker) fileKeyRef(r *corev1.FileKeySelector, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.VolumeName == "" {
		errs = append(errs, field.Required(at.Child("volumeName"), ""),
			field.NotFound(at.Child("volumeName"), r.VolumeName))
	} else if v, ok := k.volumes[r.VolumeName]; !ok {
		errs = append(errs, rules.Messages(at.Child("volumeName"), r.VolumeName,
			validation.IsDNS1123Label(r.VolumeName))...)
		errs = append(errs, field.NotFound(at.Child("volumeName"), r.VolumeName))
	} else if v.EmptyDir == nil {
		errs = append(errs, field.Invalid(at.Child("volumeName"), r.VolumeName,
			"referenced volume must be of type emptyDir"))
	}
	if r.Path == "" {
		errs = append(errs, field.Required(at.Child("path"), ""))
	} else {
		errs = append(errs, rules.NoBacksteps(r.Path, at.Child("path"))...)
	}
	if r.Key == "" {
		errs = append(errs, field.Required(at.Child("key"), ""))
	} else {
		errs = append(errs, rules.Messages(at.Child("key"), r.Key, validation.IsRelaxedEnvVarName(r.Key))...)
	}
	return errs
}

// Pod fields that the downward API provides: as an environment variable and as a file.
var (
	envFields = []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
	// otherFields are names that are valid in field selectors.
	otherFields = []string{"spec.restartPolicy", "spec.schedulerName", "status.phase"}
	fileFields  = []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace",
		"metadata.uid"}
)

func validateFieldRef(r *corev1.ObjectFieldSelector, allowed []string, at *field.Path) field.ErrorList {
	if r.APIVersion == "" {
		return field.ErrorList{field.Required(at.Child("apiVersion"), "")}
	}
	if r.FieldPath == "" {
		return field.ErrorList{field.Required(at.Child("fieldPath"), "")}
	}
	if r.APIVersion != "v1" {
		return field.ErrorList{field.Invalid(at.Child("fieldPath"), r.FieldPath,
			fmt.Sprintf("error converting fieldPath: unsupported pod version: %s", r.APIVersion))}
	}
	if base, sub, ok := strings.Cut(strings.TrimSuffix(r.FieldPath, "']"), "['"); ok && base != "" &&
		strings.HasSuffix(r.FieldPath, "']") {
		switch base {
		case "metadata.annotations":
			return rules.Messages(at, strings.ToLower(sub), validation.IsQualifiedName(strings.ToLower(sub)))
		case "metadata.labels":
			return rules.Messages(at, sub, validation.IsQualifiedName(sub))
		}
		return field.ErrorList{field.Invalid(at.Child("fieldPath"), r.FieldPath,
			"error converting fieldPath: field label does not support subscript: "+r.FieldPath)}
	}
	path := r.FieldPath
	switch {
	case path == "spec.host": // its name in old clients
		path = "spec.nodeName"
	case !slices.Contains(envFields, path) && !slices.Contains(fileFields, path) && !slices.Contains(otherFields, path):
		return field.ErrorList{field.Invalid(at.Child("fieldPath"), path,
			"error converting fieldPath: field label not supported: "+path)}
	}
	if !slices.Contains(allowed, path) {
		return field.ErrorList{field.NotSupported(at.Child("fieldPath"), path, allowed)}
	}
	return nil
}

var containerFields = []string{
	"limits.cpu", "limits.ephemeral-storage", "limits.memory",
	"requests.cpu", "requests.ephemeral-storage", "requests.memory",
}

func validateResourceFieldRef(r *corev1.ResourceFieldSelector, file bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	name := strings.TrimPrefix(strings.TrimPrefix(r.Resource, "limits."), "requests.")
	switch {
	case file && r.ContainerName == "":
		errs = append(errs, field.Required(at.Child("containerName"), ""))
	case r.Resource == "":
		errs = append(errs, field.Required(at.Child("resource"), ""))
	case !slices.Contains(containerFields, r.Resource) &&
		(name == r.Resource || !strings.HasPrefix(name, corev1.ResourceHugePagesPrefix)):
		errs = append(errs, field.NotSupported(at.Child("resource"), r.Resource, containerFields))
	}
	if name == r.Resource {
		return errs // it has no divisor
	}
	divisors := []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	if name == string(corev1.ResourceCPU) {
		divisors = []string{"1m", "1"}
	}
	if d := r.Divisor.String(); d != "0" && !slices.Contains(divisors, d) {
		kind := "memory"
		if name == string(corev1.ResourceCPU) {
			kind = "cpu"
		}
		errs = append(errs, field.Invalid(at.Child("divisor"), r.Resource,
			fmt.Sprintf("only divisor's values %s are supported with the %s resource", strings.Join(divisors, ", "),
				kind)))
	}
	return errs
}

func validateEnvFrom(list []corev1.EnvFromSource, whole *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		e, at := &list[i], whole.Index(i)
		if e.Prefix != "" {
			errs = append(errs,
				rules.Messages(at.Child("prefix"), e.Prefix, validation.IsRelaxedEnvVarName(e.Prefix))...)
		}
		for _, ref := range []struct {
			field string
			set   bool
			name  func() string
		}{{"configMapRef", e.ConfigMapRef != nil, func() string { return e.ConfigMapRef.Name }},
			{"secretRef", e.SecretRef != nil, func() string { return e.SecretRef.Name }}} {
			switch at := at.Child(ref.field, "name"); {
			case !ref.set:
			case ref.name() == "":
				errs = append(errs, field.Required(at, ""))
			default:
				errs = append(errs,
					rules.Messages(at, ref.name(), apivalidation.NameIsDNSSubdomain(ref.name(), true))...)
			}
		}
		switch {
		case e.ConfigMapRef == nil && e.SecretRef == nil:
			errs = append(errs, field.Invalid(whole, "", "must specify one of: `configMapRef` or `secretRef`"))
		case e.ConfigMapRef != nil && e.SecretRef != nil:
			errs = append(errs, field.Invalid(whole, "", "may not have more than one field specified at a time"))
		}
	}
	return errs
}
