package core

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

const (
	maxContent     = corev1.MaxSecretSize // bytes of a config map or a secret
	isImmutable    = "field is immutable when `immutable` is set"
	redacted       = "<secret contents redacted>"
	duplicateOfKey = "duplicate of key present in "
)

func validateConfigMap(c *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for _, key := range slices.Sorted(maps.Keys(c.Data)) {
		errs = append(errs, rules.Messages(field.NewPath("data").Key(key), key, validation.IsConfigMapKey(key))...)
		if _, dup := c.BinaryData[key]; dup {
			errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, duplicateOfKey+"binaryData"))
		}
		size += len(c.Data[key])
	}
	for _, key := range slices.Sorted(maps.Keys(c.BinaryData)) {
		errs = append(errs, rules.Messages(field.NewPath("binaryData").Key(key), key,
			validation.IsConfigMapKey(key))...)
		size += len(c.BinaryData[key])
	}
	if size > maxContent {
		errs = append(errs, field.TooLong(field.NewPath(""), "", maxContent))
	}
	return errs
}

func validateConfigMapUpdate(c, old *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	if old.Immutable != nil && *old.Immutable {
		if c.Immutable == nil || !*c.Immutable {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), isImmutable))
		}
		if !apiequality.Semantic.DeepEqual(c.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), isImmutable))
		}
		if !apiequality.Semantic.DeepEqual(c.BinaryData, old.BinaryData) {
			errs = append(errs, field.Forbidden(field.NewPath("binaryData"), isImmutable))
		}
	}
	return append(errs, validateConfigMap(c)...)
}

func validateSecret(s *corev1.Secret) field.ErrorList {
	data := field.NewPath("data")
	var errs field.ErrorList
	size := 0
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		errs = append(errs, rules.Messages(data.Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(s.Data[key])
	}
	if size > maxContent {
		errs = append(errs, field.TooLong(data, "", maxContent))
	}
	need := func(keys ...string) {
		for _, key := range keys {
			if _, ok := s.Data[key]; !ok {
				errs = append(errs, field.Required(data.Key(key), ""))
			}
		}
	}
	isJSON := func(key string) {
		value, ok := s.Data[key]
		if !ok {
			errs = append(errs, field.Required(data.Key(key), ""))
		} else if err := json.Unmarshal(value, &map[string]any{}); err != nil {
			errs = append(errs, field.Invalid(data.Key(key), redacted, err.Error()))
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs,
				field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		isJSON(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		isJSON(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			need(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return errs
}

func validateSecretUpdate(s, old *corev1.Secret) field.ErrorList {
	errs := apivalidation.ValidateImmutableField(s.Type, old.Type, field.NewPath("type"))
	if old.Immutable != nil && *old.Immutable {
		if s.Immutable == nil || !*s.Immutable {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), isImmutable))
		}
		if !apiequality.Semantic.DeepEqual(s.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), isImmutable))
		}
	}
	return append(errs, validateSecret(s)...)
}

func validateNamespace(n *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	for _, f := range n.Spec.Finalizers {
		errs = append(errs, rules.FinalizerName(string(f), field.NewPath("spec", "finalizers"))...)
	}
	return errs
}

func validateNamespaceStatusUpdate(n, _ *corev1.Namespace) field.ErrorList {
	at := field.NewPath("status", "Phase")
	switch ending := n.DeletionTimestamp != nil; {
	case !ending && n.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(at, n.Status.Phase,
			"may only be 'Active' if `deletionTimestamp` is empty")}
	case ending && n.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(at, n.Status.Phase,
			"may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}
