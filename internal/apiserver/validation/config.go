package validation

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxContent     = corev1.MaxSecretSize // of a config map or a secret, bytes
	isImmutable    = "field is immutable when `immutable` is set"
	redacted       = "<secret contents redacted>"
	duplicateOfKey = "duplicate of key present in "
)

// specialIP says why an address can't be somebody else's; empty when it can.
func specialIP(ip string) string {
	a, err := netip.ParseAddr(ip)
	switch {
	case err != nil:
		return "must be a valid IP address"
	case a.IsUnspecified():
		return fmt.Sprintf("may not be unspecified (%v)", ip)
	case a.IsLoopback():
		return "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case a.IsLinkLocalUnicast():
		return "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case a.IsLinkLocalMulticast():
		return "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
	}
	return ""
}

func configMap(c *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for _, key := range slices.Sorted(maps.Keys(c.Data)) {
		errs = append(errs, messages(field.NewPath("data").Key(key), key, validation.IsConfigMapKey(key))...)
		if _, dup := c.BinaryData[key]; dup {
			errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, duplicateOfKey+"binaryData"))
		}
		size += len(c.Data[key])
	}
	for _, key := range slices.Sorted(maps.Keys(c.BinaryData)) {
		errs = append(errs, messages(field.NewPath("binaryData").Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(c.BinaryData[key])
	}
	if size > maxContent {
		errs = append(errs, field.TooLong(field.NewPath(""), "", maxContent))
	}
	return errs
}

func configMapUpdate(c, old *corev1.ConfigMap) field.ErrorList {
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
	return append(errs, configMap(c)...)
}

func secret(s *corev1.Secret) field.ErrorList {
	data := field.NewPath("data")
	var errs field.ErrorList
	size := 0
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		errs = append(errs, messages(data.Key(key), key, validation.IsConfigMapKey(key))...)
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
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
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

func secretUpdate(s, old *corev1.Secret) field.ErrorList {
	errs := apivalidation.ValidateImmutableField(s.Type, old.Type, field.NewPath("type"))
	if old.Immutable != nil && *old.Immutable {
		if s.Immutable == nil || !*s.Immutable {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), isImmutable))
		}
		if !apiequality.Semantic.DeepEqual(s.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), isImmutable))
		}
	}
	return append(errs, secret(s)...)
}

func namespace(n *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	for i, f := range n.Spec.Finalizers {
		errs = append(errs, messages(field.NewPath("spec", "finalizers").Index(i), string(f), validation.IsQualifiedName(string(f)))...)
	}
	return errs
}

func namespaceStatusUpdate(n, _ *corev1.Namespace) field.ErrorList {
	at := field.NewPath("status", "Phase")
	switch ending := n.DeletionTimestamp != nil; {
	case !ending && n.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(at, n.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	case ending && n.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(at, n.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}

func event(e *corev1.Event) field.ErrorList {
	if e.InvolvedObject.Namespace == "" {
		// Events of cluster objects live in the default namespace.
		if e.Namespace != "" && e.Namespace != corev1.NamespaceDefault && e.Namespace != "kube-system" {
			return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"), e.InvolvedObject.Namespace, "does not match event.namespace")}
		}
		return nil
	}
	if e.Namespace != e.InvolvedObject.Namespace {
		return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"), e.InvolvedObject.Namespace, "does not match event.namespace")}
	}
	return nil
}

func limitRange(l *corev1.LimitRange) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[corev1.LimitType]()
	for i := range l.Spec.Limits {
		it, at := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		if it.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		}
		if seen.Has(it.Type) {
			errs = append(errs, field.Duplicate(at.Child("type"), it.Type))
		}
		seen.Insert(it.Type)
		if it.Type == corev1.LimitTypePod {
			const not = "may not be specified when `type` is 'Pod'"
			if len(it.Default) > 0 {
				errs = append(errs, field.Forbidden(at.Child("default"), not))
			}
			if len(it.DefaultRequest) > 0 {
				errs = append(errs, field.Forbidden(at.Child("defaultRequest"), not))
			}
		}
		if it.Type == corev1.LimitTypePersistentVolumeClaim {
			_, low := it.Min[corev1.ResourceStorage]
			_, high := it.Max[corev1.ResourceStorage]
			if !low && !high {
				errs = append(errs, field.Required(at, "either minimum or maximum storage value is required, but neither was provided"))
			}
		}
		errs = append(errs, limitOrder(it, at)...)
	}
	return errs
}

// limitOrder checks min <= defaultRequest <= default <= max.
func limitOrder(it *corev1.LimitRangeItem, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	steps := []struct {
		field, name string
		list        corev1.ResourceList
	}{{"min", "min", it.Min}, {"defaultRequest", "default request", it.DefaultRequest}, {"default", "default", it.Default}, {"max", "max", it.Max}}
	for i, low := range steps {
		for _, name := range sortedNames(low.list) {
			errs = append(errs, resourceName(name, at.Child(low.field).Key(string(name)), false)...)
			q := low.list[name]
			for _, high := range steps[i+1:] {
				if h, ok := high.list[name]; ok && q.Cmp(h) > 0 {
					errs = append(errs, field.Invalid(at.Child(low.field).Key(string(name)), q.String(), fmt.Sprintf("%s value %s is greater than %s value %s", low.name, q.String(), high.name, h.String())))
				}
			}
		}
	}
	return errs
}

func resourceQuota(q *corev1.ResourceQuota) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("spec", "hard")
	for _, name := range sortedNames(q.Spec.Hard) {
		amount := q.Spec.Hard[name]
		errs = append(errs, messages(at.Key(string(name)), string(name), validation.IsQualifiedName(string(name)))...)
		errs = append(errs, quantity(name, amount, at.Key(string(name)))...)
	}
	return errs
}

func resourceQuotaUpdate(q, old *corev1.ResourceQuota) field.ErrorList {
	errs := resourceQuota(q)
	if !sets.New(q.Spec.Scopes...).Equal(sets.New(old.Spec.Scopes...)) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes, apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}

func node(n *corev1.Node) field.ErrorList {
	errs := taints(n.Spec.Taints, field.NewPath("spec", "taints"))
	for i, c := range n.Spec.PodCIDRs {
		errs = append(errs, validation.IsValidCIDRForLegacyField(field.NewPath("spec", "podCIDRs").Index(i), c, false, nil)...)
	}
	return errs
}

func taints(list []corev1.Taint, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, t := range list {
		at := at.Index(i)
		errs = append(errs, messages(at.Child("key"), t.Key, validation.IsQualifiedName(t.Key))...)
		errs = append(errs, messages(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
		errs = append(errs, taintEffect(t.Effect, at.Child("effect"))...)
		key := string(t.Effect) + "/" + t.Key
		if seen.Has(key) {
			d := field.Duplicate(at, t)
			d.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, d)
		}
		seen.Insert(key)
	}
	return errs
}

func nodeUpdate(n, old *corev1.Node) field.ErrorList {
	errs := node(n)
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(n.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	if old.Spec.ProviderID != "" && n.Spec.ProviderID != old.Spec.ProviderID {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	seen := sets.New[corev1.NodeAddress]()
	for i, a := range n.Status.Addresses {
		if seen.Has(a) {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), a))
		}
		seen.Insert(a)
	}
	return errs
}
