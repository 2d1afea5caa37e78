package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
)

// hook has the common fields of the two kinds of webhooks.
type hook struct {
	name         string
	rules        []admissionregistrationv1.RuleWithOperations
	failure      *admissionregistrationv1.FailurePolicyType
	match        *admissionregistrationv1.MatchPolicyType
	sideEffects  *admissionregistrationv1.SideEffectClass
	timeout      *int32
	namespaces   *metav1.LabelSelector
	objects      *metav1.LabelSelector
	client       *admissionregistrationv1.WebhookClientConfig
	versions     []string
	conditions   []admissionregistrationv1.MatchCondition
	reinvocation *admissionregistrationv1.ReinvocationPolicyType
	mayReinvoke  bool
}

func mutatingHooks(c *admissionregistrationv1.MutatingWebhookConfiguration) []hook {
	var out []hook
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		out = append(out, hook{w.Name, w.Rules, w.FailurePolicy, w.MatchPolicy, w.SideEffects, w.TimeoutSeconds,
			w.NamespaceSelector, w.ObjectSelector, &w.ClientConfig,
			w.AdmissionReviewVersions, w.MatchConditions, w.ReinvocationPolicy, true})
	}
	return out
}

func validatingHooks(c *admissionregistrationv1.ValidatingWebhookConfiguration) []hook {
	var out []hook
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		out = append(out, hook{w.Name, w.Rules, w.FailurePolicy, w.MatchPolicy, w.SideEffects, w.TimeoutSeconds,
			w.NamespaceSelector, w.ObjectSelector, &w.ClientConfig,
			w.AdmissionReviewVersions, w.MatchConditions, nil, false})
	}
	return out
}

func mutatingConfiguration(c *admissionregistrationv1.MutatingWebhookConfiguration) field.ErrorList {
	return validateHooks(mutatingHooks(c), nil, faults{})
}

func mutatingConfigurationUpdate(c, old *admissionregistrationv1.MutatingWebhookConfiguration) field.ErrorList {
	before := mutatingHooks(old)
	return validateHooks(mutatingHooks(c), before, keptFaults(before))
}

func validatingConfiguration(c *admissionregistrationv1.ValidatingWebhookConfiguration) field.ErrorList {
	return validateHooks(validatingHooks(c), nil, faults{})
}

func validatingConfigurationUpdate(c, old *admissionregistrationv1.ValidatingWebhookConfiguration) field.ErrorList {
	before := validatingHooks(old)
	return validateHooks(validatingHooks(c), before, keptFaults(before))
}

// faults are the rules that an update may violate, because the stored object violates them and
// could not be updated otherwise.
type faults struct{ sideEffects, versions, names, selectors bool }

func keptFaults(old []hook) faults {
	var l faults
	names := map[string]bool{}
	for _, h := range old {
		if h.sideEffects == nil || !slices.Contains(harmless, string(*h.sideEffects)) {
			l.sideEffects = true
		}
		if len(h.versions) > 0 && !slices.ContainsFunc(h.versions, reviewable) {
			l.versions = true
		}
		l.names = l.names || names[h.name]
		names[h.name] = true
		for _, s := range []*metav1.LabelSelector{h.namespaces, h.objects} {
			if s != nil &&
				len(metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{},
					nil)) > 0 {
				l.selectors = true
			}
		}
	}
	return l
}

var (
	failures = []string{string(admissionregistrationv1.Fail), string(admissionregistrationv1.Ignore)}
	matches  = []string{string(admissionregistrationv1.Equivalent), string(admissionregistrationv1.Exact)}
	harmless = []string{string(admissionregistrationv1.SideEffectClassNone),
		string(admissionregistrationv1.SideEffectClassNoneOnDryRun)}
	effects = append([]string{string(admissionregistrationv1.SideEffectClassSome),
		string(admissionregistrationv1.SideEffectClassUnknown)}, harmless...)
	reinvocations = []string{string(admissionregistrationv1.IfNeededReinvocationPolicy),
		string(admissionregistrationv1.NeverReinvocationPolicy)}
	reviews = []string{"v1", "v1beta1"}
	scopes  = []string{string(admissionregistrationv1.AllScopes), string(admissionregistrationv1.ClusterScope),
		string(admissionregistrationv1.NamespacedScope)}
	mutations = []string{string(admissionregistrationv1.OperationAll), string(admissionregistrationv1.Connect),
		string(admissionregistrationv1.Create), string(admissionregistrationv1.Update)}
	operations = append([]string{string(admissionregistrationv1.Delete)}, mutations...)
)

func reviewable(version string) bool { return slices.Contains(reviews, version) }

// oneOf validates an optional enumeration.
func oneOf[T ~string](v *T, allowed []string, at *field.Path) field.ErrorList {
	if v == nil || slices.Contains(allowed, string(*v)) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, *v, slices.Sorted(slices.Values(allowed)))}
}

func validateHooks(list, old []hook, l faults) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	stored := stored{}
	for _, h := range old {
		for _, c := range h.conditions {
			stored.add(c.Expression)
		}
	}
	sameConditions := len(old) == len(list) && len(old) > 0
	for i := range old {
		sameConditions = sameConditions && equality.Semantic.DeepEqual(list[i].conditions, old[i].conditions)
	}
	for i := range list {
		h, at := &list[i], field.NewPath("webhooks").Index(i)
		errs = append(errs, h.validate(l, at)...)
		if !sameConditions {
			errs = append(errs, matchConditions(h.conditions, false, stored, at.Child("matchConditions"))...)
		}
		if !l.names && h.name != "" {
			if names[h.name] {
				errs = append(errs, field.Duplicate(at.Child("name"), h.name))
			}
			names[h.name] = true
		}
	}
	return errs
}

func (h *hook) validate(l faults, at *field.Path) field.ErrorList {
	errs := utilvalidation.IsFullyQualifiedName(at.Child("name"), h.name)
	for i := range h.rules {
		errs = append(errs, ruleWithOperations(&h.rules[i], at.Child("rules").Index(i))...)
	}
	errs = append(errs, oneOf(h.failure, failures, at.Child("failurePolicy"))...)
	errs = append(errs, oneOf(h.match, matches, at.Child("matchPolicy"))...)
	allowed := harmless
	if l.sideEffects {
		allowed = effects
	}
	if h.sideEffects == nil {
		errs = append(errs, field.Required(at.Child("sideEffects"),
			"must specify one of "+strings.Join(slices.Sorted(slices.Values(allowed)), ", ")))
	}
	errs = append(errs, oneOf(h.sideEffects, allowed, at.Child("sideEffects"))...)
	if t := h.timeout; t != nil && (*t < 1 || *t > 30) {
		errs = append(errs, field.Invalid(at.Child("timeoutSeconds"), *t,
			"the timeout value must be between 1 and 30 seconds"))
	}
	selector := metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: l.selectors}
	if h.namespaces != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(h.namespaces, selector,
			at.Child("namespaceSelector"))...)
	}
	if h.objects != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(h.objects, selector, at.Child("objectSelector"))...)
	}
	if h.mayReinvoke {
		errs = append(errs, oneOf(h.reinvocation, reinvocations, at.Child("reinvocationPolicy"))...)
	}
	client := at.Child("clientConfig")
	switch c := h.client; {
	case (c.URL == nil) == (c.Service == nil):
		errs = append(errs, field.Required(client, "exactly one of url or service is required"))
	case c.URL != nil:
		errs = append(errs, webhookutil.ValidateWebhookURL(client.Child("url"), *c.URL, true)...)
	default:
		port := defaultPort
		if c.Service.Port != nil {
			port = *c.Service.Port
		}
		errs = append(errs, webhookutil.ValidateWebhookService(client.Child("service"), c.Service.Namespace,
			c.Service.Name, c.Service.Path, port)...)
	}
	return append(errs, reviewVersions(h.versions, l, at.Child("admissionReviewVersions"))...)
}

func reviewVersions(versions []string, l faults, at *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(at, "must specify one of "+strings.Join(reviews, ", "))}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, v := range versions {
		if seen[v] {
			errs = append(errs, field.Invalid(at.Index(i), v, "duplicate version"))
			continue
		}
		seen[v] = true
		for _, m := range utilvalidation.IsDNS1035Label(v) {
			errs = append(errs, field.Invalid(at.Index(i), v, m))
		}
	}
	if !l.versions && !slices.ContainsFunc(versions, reviewable) {
		errs = append(errs, field.Invalid(at, versions, "must include at least one of "+strings.Join(reviews, ", ")))
	}
	return errs
}

func ruleWithOperations(r *admissionregistrationv1.RuleWithOperations, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Operations) == 0 {
		errs = append(errs, field.Required(at.Child("operations"), ""))
	}
	if len(r.Operations) > 1 && slices.Contains(r.Operations, admissionregistrationv1.OperationAll) {
		errs = append(errs, field.Invalid(at.Child("operations"), r.Operations,
			"if '*' is present, must not specify other operations"))
	}
	for i := range r.Operations {
		errs = append(errs, oneOf(&r.Operations[i], operations, at.Child("operations").Index(i))...)
	}
	errs = append(errs, exclusive(r.APIGroups, true, "API groups", at.Child("apiGroups"))...)
	errs = append(errs, exclusive(r.APIVersions, false, "API versions", at.Child("apiVersions"))...)
	errs = append(errs, ruleResources(r.Resources, at.Child("resources"))...)
	return append(errs, oneOf(r.Scope, scopes, at.Child("scope"))...)
}

// exclusive validates a list in which "*" must be the only element.
func exclusive(list []string, mayBeEmpty bool, what string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(list) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	if len(list) > 1 && slices.Contains(list, "*") {
		errs = append(errs, field.Invalid(at, list, "if '*' is present, must not specify other "+what))
	}
	for i, v := range list {
		if v == "" && !mayBeEmpty {
			errs = append(errs, field.Required(at.Index(i), ""))
		}
	}
	return errs
}

// ruleResources validates resources with subresources: x, x/y, x/*, */y, *, and */*.
func ruleResources(list []string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(list) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	allOf, everywhere := map[string]bool{}, map[string]bool{}
	plain := false
	for i, r := range list {
		if r == "" {
			errs = append(errs, field.Required(at.Index(i), ""))
			continue
		}
		resource, sub, ok := strings.Cut(r, "/")
		if !ok {
			plain = r != "*"
			continue
		}
		if allOf[resource] {
			errs = append(errs,
				field.Invalid(at.Index(i), r, fmt.Sprintf("if '%s/*' is present, must not specify %s", resource, r)))
		}
		if everywhere[sub] {
			errs = append(errs,
				field.Invalid(at.Index(i), r, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, r)))
		}
		allOf[resource] = allOf[resource] || sub == "*"
		everywhere[sub] = everywhere[sub] || resource == "*"
	}
	if len(list) > 1 && slices.Contains(list, "*/*") {
		errs = append(errs, field.Invalid(at, list, "if '*/*' is present, must not specify other resources"))
	}
	if plain && slices.Contains(list, "*") {
		errs = append(errs,
			field.Invalid(at, list, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}
