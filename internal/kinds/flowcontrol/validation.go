package flowcontrol

import (
	"fmt"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"
)

const (
	maxPrecedence       = 10000
	maxQueues     int32 = 10_000_000
)

var (
	verbs   = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}
	methods = []flowcontrolv1.FlowDistinguisherMethodType{flowcontrolv1.FlowDistinguisherMethodByNamespaceType,
		flowcontrolv1.FlowDistinguisherMethodByUserType}
	kinds = []flowcontrolv1.SubjectKind{flowcontrolv1.SubjectKindGroup, flowcontrolv1.SubjectKindServiceAccount,
		flowcontrolv1.SubjectKindUser}
	types = []flowcontrolv1.PriorityLevelEnablement{flowcontrolv1.PriorityLevelEnablementExempt,
		flowcontrolv1.PriorityLevelEnablementLimited}
	answers = []flowcontrolv1.LimitResponseType{flowcontrolv1.LimitResponseTypeQueue,
		flowcontrolv1.LimitResponseTypeReject}
)

func flowSchema(f *flowcontrolv1.FlowSchema) field.ErrorList {
	at, spec := field.NewPath("spec"), &f.Spec
	var errs field.ErrorList
	precedence := at.Child("matchingPrecedence")
	switch p := spec.MatchingPrecedence; {
	case p <= 0:
		errs = append(errs, field.Invalid(precedence, p, "must be a positive value"))
	case p > maxPrecedence:
		errs = append(errs, field.Invalid(precedence, p, fmt.Sprintf("must not be greater than %v", maxPrecedence)))
	case p == 1 && f.Name != flowcontrolv1.FlowSchemaNameExempt:
		errs = append(errs,
			field.Invalid(precedence, p, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if m := spec.DistinguisherMethod; m != nil && !slices.Contains(methods, m.Type) {
		errs = append(errs, field.NotSupported(at.Child("distinguisherMethod", "type"), m, methods))
	}
	level := at.Child("priorityLevelConfiguration", "name")
	if name := spec.PriorityLevelConfiguration.Name; name == "" {
		errs = append(errs, field.Required(level, "must reference a priority level"))
	} else {
		for _, m := range apivalidation.NameIsDNSSubdomain(name, false) {
			errs = append(errs, field.Invalid(level, name, m))
		}
	}
	for i := range spec.Rules {
		errs = append(errs, rule(&spec.Rules[i], at.Child("rules").Index(i))...)
	}
	for _, m := range bootstrap.MandatoryFlowSchemas {
		if m.Name == f.Name && !equality.Semantic.DeepEqual(f.Spec, m.Spec) {
			errs = append(errs,
				field.Invalid(at, f.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", f.Name)))
		}
	}
	return append(errs, schemaStatus(&f.Status)...)
}

func rule(r *flowcontrolv1.PolicyRulesWithSubjects, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Subjects) == 0 {
		errs = append(errs, field.Required(at.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range r.Subjects {
		errs = append(errs, subject(&r.Subjects[i], at.Child("subjects").Index(i))...)
	}
	if len(r.ResourceRules)+len(r.NonResourceRules) == 0 {
		errs = append(errs,
			field.Required(at, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range r.ResourceRules {
		errs = append(errs, resourceRule(&r.ResourceRules[i], at.Child("resourceRules").Index(i))...)
	}
	for i, n := range r.NonResourceRules {
		p := at.Child("nonResourceRules").Index(i)
		errs = append(errs, wildcard(n.Verbs, "verbs", "verbs must contain at least one value", p.Child("verbs"))...)
		errs = append(errs, knownVerbs(n.Verbs, p.Child("verbs"))...)
		urls := p.Child("nonResourceURLs")
		errs = append(errs, wildcard(n.NonResourceURLs, "non-resource URLs",
			"nonResourceURLs must contain at least one value", urls)...)
		for j, u := range n.NonResourceURLs {
			if wrong := wrongPath(u); wrong != "" {
				errs = append(errs, field.Invalid(urls.Index(j), u, wrong))
			}
		}
	}
	return errs
}

func resourceRule(r *flowcontrolv1.ResourcePolicyRule, at *field.Path) field.ErrorList {
	errs := wildcard(r.Verbs, "verbs", "verbs must contain at least one value", at.Child("verbs"))
	errs = append(errs, knownVerbs(r.Verbs, at.Child("verbs"))...)
	errs = append(errs, wildcard(r.APIGroups, "api groups", "resource rules must supply at least one api group",
		at.Child("apiGroups"))...)
	errs = append(errs, wildcard(r.Resources, "resources", "resource rules must supply at least one resource",
		at.Child("resources"))...)
	namespaces := at.Child("namespaces")
	if len(r.Namespaces) > 0 || !r.ClusterScope {
		errs = append(errs, wildcard(r.Namespaces, "namespaces",
			"resource rules that are not cluster scoped must supply at least one namespace", namespaces)...)
	}
	for i, n := range r.Namespaces {
		if n == flowcontrolv1.NamespaceEvery {
			continue
		}
		for _, m := range apivalidation.ValidateNamespaceName(n, false) {
			errs = append(errs,
				field.Invalid(namespaces.Index(i), n, "each member of this list must be '*' or a DNS-1123 label; "+m))
		}
	}
	return errs
}

// wildcard validates a list that must not be empty and in which "*" must be the only element.
func wildcard(list []string, what, required string, at *field.Path) field.ErrorList {
	switch {
	case len(list) == 0:
		return field.ErrorList{field.Required(at, required)}
	case len(list) > 1 && slices.Contains(list, "*"):
		return field.ErrorList{field.Invalid(at, list,
			fmt.Sprintf("if '*' is present, must not specify other %s", what))}
	}
	return nil
}

func knownVerbs(list []string, at *field.Path) field.ErrorList {
	if slices.Contains(list, "*") || !slices.ContainsFunc(list,
		func(v string) bool { return !slices.Contains(verbs, v) }) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, list, verbs)}
}

// wrongPath returns the error of a path that may end in "/*"; "*" alone means all paths.
func wrongPath(p string) string {
	switch stars := strings.Count(p, "*"); {
	case p == "*" || p == "/":
		return ""
	case p == "":
		return "must not be empty"
	case !strings.HasPrefix(p, "/"):
		return "must start with slash"
	case strings.Contains(p, " "):
		return "must not contain white-space"
	case strings.Contains(p, "//"):
		return "must not contain double slash"
	case stars > 1 || stars == 1 && !strings.HasSuffix(p, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}

func subject(s *flowcontrolv1.Subject, at *field.Path) field.ErrorList {
	if !slices.Contains(kinds, s.Kind) {
		return field.ErrorList{field.NotSupported(at.Child("kind"), s.Kind, kinds)}
	}
	var errs field.ErrorList
	for _, part := range []struct {
		kind  flowcontrolv1.SubjectKind
		field string
		set   bool
	}{{flowcontrolv1.SubjectKindUser, "user", s.User != nil}, {flowcontrolv1.SubjectKindGroup, "group", s.Group != nil},
		{flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil}} {
		switch {
		case part.kind == s.Kind && !part.set:
			errs = append(errs,
				field.Required(at.Child(part.field),
					fmt.Sprintf("%s is required when subject kind is '%s'", part.field, part.kind)))
		case part.kind != s.Kind && part.set:
			errs = append(errs,
				field.Forbidden(at.Child(part.field),
					fmt.Sprintf("%s is forbidden when subject kind is not '%s'", part.field, part.kind)))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	switch {
	case s.User != nil && s.User.Name == "":
		errs = append(errs, field.Required(at.Child("user", "name"), ""))
	case s.Group != nil && s.Group.Name == "":
		errs = append(errs, field.Required(at.Child("group", "name"), ""))
	case s.ServiceAccount != nil:
		errs = append(errs, account(s.ServiceAccount, at.Child("serviceAccount"))...)
	}
	return errs
}

func account(a *flowcontrolv1.ServiceAccountSubject, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if a.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else if a.Name != flowcontrolv1.NameAll {
		for _, m := range apivalidation.ValidateServiceAccountName(a.Name, false) {
			errs = append(errs, field.Invalid(at.Child("name"), a.Name, m))
		}
	}
	if a.Namespace == "" {
		return append(errs, field.Required(at.Child("namespace"), "must specify namespace for service account"))
	}
	for _, m := range apivalidation.ValidateNamespaceName(a.Namespace, false) {
		errs = append(errs, field.Invalid(at.Child("namespace"), a.Namespace, m))
	}
	return errs
}

// priorityLevel validates a level. Upstream validates the fields of its type twice: once by a rule
// with a fixed text, and, for an unchanged spec, by a rule with an explanation.
func priorityLevel(l *flowcontrolv1.PriorityLevelConfiguration, kept bool) field.ErrorList {
	at, spec := field.NewPath("spec"), &l.Spec
	because := func(text string) string {
		if kept {
			return text
		}
		return ""
	}
	var errs field.ErrorList
	if (l.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt) != (spec.Type ==
		flowcontrolv1.PriorityLevelEnablementExempt) {
		errs = append(errs, field.Invalid(at.Child("type"), spec.Type,
			"must be 'Exempt' if and only if `name` is 'exempt'"))
	}
	if exempt := spec.Type == flowcontrolv1.PriorityLevelEnablementExempt; spec.Limited != nil &&
		spec.Type != flowcontrolv1.PriorityLevelEnablementLimited && (exempt || !kept) {
		errs = append(errs, field.Forbidden(at.Child("limited"), because("must be nil if the type is not Limited")))
	}
	switch spec.Type {
	case "":
		errs = append(errs, field.Required(at.Child("type"), ""))
	case flowcontrolv1.PriorityLevelEnablementExempt:
		if e := spec.Exempt; e != nil {
			errs = append(errs, shares(e.NominalConcurrencyShares, e.LendablePercent, at.Child("exempt"))...)
		}
	case flowcontrolv1.PriorityLevelEnablementLimited:
		if spec.Exempt != nil {
			errs = append(errs, field.Forbidden(at.Child("exempt"), because("must be nil if the type is Limited")))
		}
		if spec.Limited == nil {
			errs = append(errs, field.Required(at.Child("limited"), because("must not be empty when type is Limited")))
		} else {
			errs = append(errs, limited(spec.Limited, kept, because, at.Child("limited"))...)
		}
	default:
		errs = append(errs, field.NotSupported(at.Child("type"), spec.Type, types))
	}
	for _, m := range bootstrap.MandatoryPriorityLevelConfigurations {
		if m.Name != l.Name {
			continue
		}
		have, what := spec.DeepCopy(), "spec of '%s' must equal the fixed value"
		if m.Spec.Exempt != nil { // the only field of a mandatory object that an administrator may change
			have.Exempt, what = m.Spec.Exempt, "spec of '%s' except the 'spec.exempt' field must equal the fixed value"
		}
		if !equality.Semantic.DeepEqual(*have, m.Spec) {
			errs = append(errs, field.Invalid(at, *spec, fmt.Sprintf(what, l.Name)))
		}
	}
	return append(errs, levelStatus(&l.Status)...)
}

func shares(nominal, lendable *int32, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if nominal != nil && *nominal < 0 {
		errs = append(errs, field.Invalid(at.Child("nominalConcurrencyShares"), *nominal,
			"must be a non-negative integer"))
	}
	if lendable != nil && (*lendable < 0 || *lendable > 100) {
		errs = append(errs, field.Invalid(at.Child("lendablePercent"), *lendable,
			"must be between 0 and 100, inclusive"))
	}
	return errs
}

func limited(l *flowcontrolv1.LimitedPriorityLevelConfiguration, kept bool, because func(string) string,
	at *field.Path) field.ErrorList {
	errs := shares(l.NominalConcurrencyShares, l.LendablePercent, at)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		errs = append(errs, field.Invalid(at.Child("borrowingLimitPercent"), *b,
			"if specified, must be a non-negative integer"))
	}
	p := at.Child("limitResponse")
	if reject := l.LimitResponse.Type == flowcontrolv1.LimitResponseTypeReject; l.LimitResponse.Queuing != nil &&
		l.LimitResponse.Type != flowcontrolv1.LimitResponseTypeQueue && (reject || !kept) {
		errs = append(errs, field.Forbidden(p.Child("queuing"),
			because("must be nil if limited.limitResponse.type is not Limited")))
	}
	switch r := l.LimitResponse; r.Type {
	case "":
		errs = append(errs, field.Required(p.Child("type"), ""))
	case flowcontrolv1.LimitResponseTypeReject:
	case flowcontrolv1.LimitResponseTypeQueue:
		if r.Queuing == nil {
			errs = append(errs,
				field.Required(p.Child("queuing"),
					because("must not be empty if limited.limitResponse.type is Limited")))
		} else {
			errs = append(errs, queuing(r.Queuing, p.Child("queuing"))...)
		}
	default:
		errs = append(errs, field.NotSupported(p.Child("type"), r.Type, answers))
	}
	return errs
}

func queuing(q *flowcontrolv1.QueuingConfiguration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if q.QueueLengthLimit <= 0 {
		errs = append(errs, field.Invalid(at.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive"))
	}
	switch {
	case q.Queues <= 0:
		errs = append(errs, field.Invalid(at.Child("queues"), q.Queues, "must be positive"))
	case q.Queues > maxQueues:
		errs = append(errs, field.Invalid(at.Child("queues"), q.Queues,
			fmt.Sprintf("must not be greater than %d", maxQueues)))
	}
	hand := at.Child("handSize")
	if q.HandSize <= 0 {
		errs = append(errs, field.Invalid(hand, q.HandSize, "must be positive"))
	} else if q.HandSize > q.Queues {
		errs = append(errs, field.Invalid(hand, q.HandSize,
			fmt.Sprintf("should not be greater than queues (%d)", q.Queues)))
	} else if bits := shufflesharding.RequiredEntropyBits(int(q.Queues),
		int(q.HandSize)); bits > shufflesharding.MaxHashBits {
		errs = append(errs, field.Invalid(hand, q.HandSize,
			fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d",
				q.Queues, q.HandSize, shufflesharding.MaxHashBits)))
	}
	return errs
}
