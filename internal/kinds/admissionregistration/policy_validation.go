package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/client-go/util/jsonpath"
)

const (
	maxAuditAnnotations = 20
	// An expression is shorter than its result may be: 10 KiB in an audit event.
	maxAuditExpression = 5 << 10
)

var (
	reasons = []string{string(metav1.StatusReasonForbidden), string(metav1.StatusReasonInvalid),
		string(metav1.StatusReasonRequestEntityTooLarge)}
	actions = []string{string(admissionregistrationv1.Audit), string(admissionregistrationv1.Deny),
		string(admissionregistrationv1.Warn)}
	missing = []string{string(admissionregistrationv1.DenyAction), string(admissionregistrationv1.AllowAction)}
	patches = []admissionregistrationv1.PatchType{admissionregistrationv1.PatchTypeApplyConfiguration,
		admissionregistrationv1.PatchTypeJSONPatch}
)

func validatingPolicy(p *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
	return validatePolicy(p, nil)
}

func validatingPolicyUpdate(p, old *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
	return validatePolicy(p, old)
}

func validatePolicy(p, old *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
	at, spec, s := field.NewPath("spec"), &p.Spec, stored{}
	if old != nil {
		for _, c := range old.Spec.MatchConditions {
			s.add(c.Expression)
		}
		for _, v := range old.Spec.Validations {
			s.add(v.Expression)
			s.add(v.MessageExpression)
		}
		for _, a := range old.Spec.AuditAnnotations {
			s.add(a.ValueExpression)
		}
	}
	errs := policyHead(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, at)
	if old == nil || !equality.Semantic.DeepEqual(spec.ParamKind, old.Spec.ParamKind) ||
		!equality.Semantic.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions) {
		errs = append(errs, matchConditions(spec.MatchConditions, spec.ParamKind != nil, s,
			at.Child("matchConditions"))...)
	}
	params := spec.ParamKind != nil
	c, more := policyCompiler(spec.Variables, params, s, at.Child("variables"))
	errs = append(errs, more...)
	if len(spec.Validations)+len(spec.AuditAnnotations) == 0 {
		const need = "validations or auditAnnotations must contain at least one item"
		return append(errs, field.Required(at.Child("validations"), need),
			field.Required(at.Child("auditAnnotations"), need))
	}
	for i := range spec.Validations {
		errs = append(errs, validation(c, &spec.Validations[i], params, s, at.Child("validations").Index(i))...)
	}
	if n := len(spec.AuditAnnotations); n > maxAuditAnnotations {
		errs = append(errs, field.Invalid(at.Child("auditAnnotations"), spec.AuditAnnotations,
			fmt.Sprintf("must not have more than %d auditAnnotations", maxAuditAnnotations)))
	}
	keys := map[string]bool{}
	for i := range spec.AuditAnnotations {
		a, p2 := &spec.AuditAnnotations[i], at.Child("auditAnnotations").Index(i)
		errs = append(errs, auditAnnotation(c, p.Name, a, params, s, p2)...)
		if keys[a.Key] {
			errs = append(errs, field.Duplicate(p2.Child("key"), a.Key))
		}
		keys[a.Key] = true
	}
	return errs
}

// policyCompiler returns the compiler for a policy's expressions, with its variables declared.
func policyCompiler(list []admissionregistrationv1.Variable, params bool, s stored, at *field.Path) (plugincel.Compiler,
	field.ErrorList) {
	if len(list) == 0 {
		return compiler(), nil
	}
	c, err := compositor()
	if err != nil {
		return compiler(), field.ErrorList{field.InternalError(at, err)}
	}
	return c, variables(c, list, params, s, at)
}

// policyHead validates the common first part of both kinds of policy.
func policyHead(failure *admissionregistrationv1.FailurePolicyType, kind *admissionregistrationv1.ParamKind,
	match *admissionregistrationv1.MatchResources, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if failure == nil {
		errs = append(errs, field.Required(at.Child("failurePolicy"), ""))
	}
	errs = append(errs, oneOf(failure, failures, at.Child("failurePolicy"))...)
	if kind != nil {
		errs = append(errs, paramKind(kind, at.Child("paramKind"))...)
	}
	if match == nil {
		return append(errs, field.Required(at.Child("matchConstraints"), ""))
	}
	errs = append(errs, matchResources(match, at.Child("matchConstraints"))...)
	if len(match.ResourceRules) == 0 {
		errs = append(errs, field.Required(at.Child("matchConstraints", "resourceRules"), ""))
	}
	return errs
}

func paramKind(k *admissionregistrationv1.ParamKind, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	gv, err := schema.ParseGroupVersion(k.APIVersion)
	switch version := at.Child("apiVersion"); {
	case k.APIVersion == "":
		errs = append(errs, field.Required(version, ""))
	case err != nil:
		errs = append(errs, field.Invalid(version, k.APIVersion, err.Error()))
	default:
		if gv.Group != "" {
			if m := utilvalidation.IsDNS1123Subdomain(gv.Group); len(m) > 0 {
				errs = append(errs, field.Invalid(version, gv.Group, strings.Join(m, ",")))
			}
		}
		if gv.Version == "" {
			errs = append(errs, field.Invalid(version, k.APIVersion, "version must be specified"))
		} else if m := utilvalidation.IsDNS1035Label(gv.Version); len(m) > 0 {
			errs = append(errs, field.Invalid(version, gv.Version, strings.Join(m, ",")))
		}
	}
	if k.Kind == "" {
		errs = append(errs, field.Required(at.Child("kind"), ""))
	} else if m := utilvalidation.IsDNS1035Label(strings.ToLower(k.Kind)); len(m) > 0 {
		errs = append(errs, field.Invalid(at.Child("kind"), k.Kind,
			"may have mixed case, but should otherwise match: "+strings.Join(m, ",")))
	}
	return errs
}

func matchResources(m *admissionregistrationv1.MatchResources, at *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	if m.MatchPolicy == nil {
		errs = append(errs, field.Required(at.Child("matchPolicy"), ""))
	}
	errs = append(errs, oneOf(m.MatchPolicy, matches, at.Child("matchPolicy"))...)
	errs = append(errs, requiredSelector(m.NamespaceSelector, at.Child("namespaceSelector"))...)
	errs = append(errs, requiredSelector(m.ObjectSelector, at.Child("objectSelector"))...)
	for i := range m.ResourceRules {
		errs = append(errs, namedRule(&m.ResourceRules[i], at.Child("resourceRules").Index(i))...)
	}
	for i := range m.ExcludeResourceRules {
		errs = append(errs, namedRule(&m.ExcludeResourceRules[i], at.Child("excludeResourceRules").Index(i))...)
	}
	return errs
}

func requiredSelector(s *metav1.LabelSelector, at *field.Path) field.ErrorList {
	if s == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, at)
}

func namedRule(r *admissionregistrationv1.NamedRuleWithOperations, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, n := range r.ResourceNames {
		for _, m := range content.IsPathSegmentName(n) {
			errs = append(errs, field.Invalid(at.Child("resourceNames").Index(i), n, m))
		}
		if names[n] {
			errs = append(errs, field.Duplicate(at.Child("resourceNames").Index(i), n))
		}
		names[n] = true
	}
	return append(errs, ruleWithOperations(&r.RuleWithOperations, at)...)
}

func validation(c plugincel.Compiler, v *admissionregistrationv1.Validation, params bool, s stored,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if strings.TrimSpace(v.Expression) == "" {
		errs = append(errs, field.Required(at.Child("expression"), "expression is not specified"))
	} else {
		errs = append(errs, compile(c, &validating.ValidationCondition{Expression: v.Expression},
			plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, s.environment(v.Expression),
			at.Child("expression"))...)
	}
	if v.MessageExpression != "" {
		if strings.TrimSpace(v.MessageExpression) == "" {
			errs = append(errs,
				field.Invalid(at.Child("messageExpression"), v.MessageExpression, "must be non-empty if specified"))
		} else {
			errs = append(errs,
				compile(c, &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression},
					plugincel.OptionalVariableDeclarations{HasParams: params}, s.environment(v.MessageExpression),
					at.Child("messageExpression"))...)
		}
	}
	if message := strings.TrimSpace(v.Message); v.Message != "" && message == "" {
		errs = append(errs, field.Invalid(at.Child("message"), v.Message, "must be non-empty if specified"))
	} else if strings.ContainsAny(message, "\n\r") {
		errs = append(errs, field.Invalid(at.Child("message"), v.Message, "must not contain line breaks"))
	}
	return append(errs, oneOf(v.Reason, reasons, at.Child("reason"))...)
}

func auditAnnotation(c plugincel.Compiler, policy string, a *admissionregistrationv1.AuditAnnotation, params bool,
	s stored, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policy == "" {
		errs = append(errs, field.Invalid(at.Child("key"), a.Key, "requires metadata.name be non-empty"))
	} else {
		errs = append(errs, qualifiedName(policy+"/"+a.Key, at.Child("key"))...)
	}
	expression, p := strings.TrimSpace(a.ValueExpression), at.Child("valueExpression")
	switch {
	case expression == "":
		return append(errs, field.Required(p, "valueExpression is not specified"))
	case len(expression) > maxAuditExpression:
		return append(errs, field.Required(p, fmt.Sprintf("must not exceed %d bytes in length", maxAuditExpression)))
	}
	return append(errs, compile(c, &validating.AuditAnnotationCondition{ValueExpression: expression},
		plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true},
		s.environment(a.ValueExpression), p)...)
}

func qualifiedName(name string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, m := range utilvalidation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(at, name, m))
	}
	return errs
}

func validatingBinding(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
	at := field.NewPath("spec")
	errs := binding(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, at)
	list, p := b.Spec.ValidationActions, at.Child("validationActions")
	if len(list) == 0 {
		return append(errs, field.Required(p, ""))
	}
	seen := sets.New[admissionregistrationv1.ValidationAction]()
	for i := range list {
		errs = append(errs, oneOf(&list[i], actions, p.Index(i))...)
		if seen.Has(list[i]) {
			errs = append(errs, field.Duplicate(p.Index(i), list[i]))
		}
		seen.Insert(list[i])
	}
	if slices.Contains(list, admissionregistrationv1.Deny) && slices.Contains(list, admissionregistrationv1.Warn) {
		errs = append(errs, field.Invalid(p, list,
			"must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	return errs
}

func mutatingBinding(b *admissionregistrationv1.MutatingAdmissionPolicyBinding) field.ErrorList {
	return binding(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, field.NewPath("spec"))
}

func binding(policy string, ref *admissionregistrationv1.ParamRef, match *admissionregistrationv1.MatchResources,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policy == "" {
		errs = append(errs, field.Required(at.Child("policyName"), ""))
	} else {
		for _, m := range apivalidation.NameIsDNSSubdomain(policy, false) {
			errs = append(errs, field.Invalid(at.Child("policyName"), policy, m))
		}
	}
	if ref != nil {
		errs = append(errs, paramRef(ref, at.Child("paramRef"))...)
	}
	return append(errs, matchResources(match, at.Child("matchResources"))...)
}

func paramRef(r *admissionregistrationv1.ParamRef, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, m := range content.IsPathSegmentName(r.Name) {
		if r.Name != "" {
			errs = append(errs, field.Invalid(at.Child("name"), r.Name, m))
		}
	}
	if r.Selector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(r.Selector,
			metav1validation.LabelSelectorValidationOptions{}, at.Child("selector"))...)
	}
	const both = "name and selector are mutually exclusive"
	switch {
	case r.Name != "" && r.Selector != nil:
		errs = append(errs, field.Forbidden(at.Child("name"), both), field.Forbidden(at.Child("selector"), both))
	case r.Name == "" && r.Selector == nil:
		errs = append(errs, field.Required(at, "one of name or selector must be specified"))
	}
	if a := r.ParameterNotFoundAction; a == nil || *a == "" {
		return append(errs, field.Required(at.Child("parameterNotFoundAction"), ""))
	}
	if a := *r.ParameterNotFoundAction; !slices.Contains(missing, string(a)) {
		errs = append(errs, field.NotSupported(at.Child("parameterNotFoundAction"), a, missing))
	}
	return errs
}

func mutatingPolicy(p *admissionregistrationv1.MutatingAdmissionPolicy) field.ErrorList {
	return validateMutatingPolicy(p, nil)
}

func mutatingPolicyUpdate(p, old *admissionregistrationv1.MutatingAdmissionPolicy) field.ErrorList {
	return validateMutatingPolicy(p, old)
}

func validateMutatingPolicy(p, old *admissionregistrationv1.MutatingAdmissionPolicy) field.ErrorList {
	at, spec, s := field.NewPath("spec"), &p.Spec, stored{}
	if old != nil {
		for _, c := range old.Spec.MatchConditions {
			s.add(c.Expression)
		}
		for _, m := range old.Spec.Mutations {
			if m.ApplyConfiguration != nil {
				s.add(m.ApplyConfiguration.Expression)
			}
			if m.JSONPatch != nil {
				s.add(m.JSONPatch.Expression)
			}
		}
	}
	errs := policyHead(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, at)
	if m := spec.MatchConstraints; m != nil {
		for i := range m.ResourceRules {
			for _, op := range m.ResourceRules[i].Operations {
				errs = append(errs,
					oneOf(&op, mutations, at.Child("matchConstraints", "resourceRules", "operations"))...)
			}
		}
	}
	params := spec.ParamKind != nil
	if old == nil || !equality.Semantic.DeepEqual(spec.ParamKind, old.Spec.ParamKind) ||
		!equality.Semantic.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions) {
		errs = append(errs, matchConditions(spec.MatchConditions, params, s, at.Child("matchConditions"))...)
	}
	c, more := policyCompiler(spec.Variables, params, s, at.Child("variables"))
	errs = append(errs, more...)
	if len(spec.Mutations) == 0 {
		errs = append(errs, field.Required(at.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range spec.Mutations {
		errs = append(errs, mutation(c, &spec.Mutations[i], params, s, at.Child("mutations").Index(i))...)
	}
	if spec.ReinvocationPolicy == "" {
		return append(errs, field.Required(at.Child("reinvocationPolicy"), ""))
	}
	return append(errs, oneOf(&spec.ReinvocationPolicy, reinvocations, at.Child("reinvocationPolicy"))...)
}

func mutation(c plugincel.Compiler, m *admissionregistrationv1.Mutation, params bool, s stored,
	at *field.Path) field.ErrorList {
	vars := plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true, HasPatchTypes: true}
	apply, json := at.Child("applyConfiguration"), at.Child("jsonPatch")
	var errs field.ErrorList
	switch m.PatchType {
	case "":
		return append(errs, field.Required(at.Child("patchType"), ""))
	case admissionregistrationv1.PatchTypeJSONPatch:
		if m.ApplyConfiguration != nil {
			errs = append(errs,
				field.Invalid(apply, "{applyConfiguration}", "must not be specified when patchType is JSONPatch"))
		}
		if m.JSONPatch == nil {
			return append(errs, field.Required(json, "must be specified when patchType is JSONPatch"))
		}
		expression := strings.TrimSpace(m.JSONPatch.Expression)
		if expression == "" {
			return append(errs, field.Required(json.Child("expression"), ""))
		}
		return append(errs, compile(c, &patch.JSONPatchCondition{Expression: expression}, vars,
			s.environment(m.JSONPatch.Expression), json.Child("expression"))...)
	case admissionregistrationv1.PatchTypeApplyConfiguration:
		if m.JSONPatch != nil {
			errs = append(errs,
				field.Invalid(json, "{jsonPatch}", "must not be specified when patchType is ApplyConfiguration"))
		}
		if m.ApplyConfiguration == nil {
			return append(errs, field.Required(apply, "must be specified when patchType is ApplyConfiguration"))
		}
		expression := strings.TrimSpace(m.ApplyConfiguration.Expression)
		if expression == "" {
			return append(errs, field.Required(apply.Child("expression"), ""))
		}
		return append(errs, compile(c, &patch.ApplyConfigurationCondition{Expression: expression}, vars,
			s.environment(m.ApplyConfiguration.Expression), apply.Child("expression"))...)
	}
	return append(errs, field.NotSupported(at.Child("patchType"), m.PatchType, patches))
}

func policyStatus(st *admissionregistrationv1.ValidatingAdmissionPolicyStatus) field.ErrorList {
	at := field.NewPath("status")
	errs := metav1validation.ValidateConditions(st.Conditions, at.Child("conditions"))
	if st.TypeChecking == nil {
		return errs
	}
	for i, w := range st.TypeChecking.ExpressionWarnings {
		p := at.Child("typeChecking", "expressionWarnings").Index(i)
		if w.Warning == "" {
			errs = append(errs, field.Required(p.Child("warning"), ""))
		}
		ref := strings.TrimSpace(w.FieldRef)
		if ref == "" {
			errs = append(errs, field.Required(p.Child("fieldRef"), ""))
		} else if err := jsonpath.New("spec").Parse("{" + ref + "}"); err != nil {
			errs = append(errs, field.Invalid(p.Child("fieldRef"), ref, fmt.Sprintf("invalid JSONPath: %v", err)))
		}
	}
	return errs
}
