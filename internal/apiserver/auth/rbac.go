// Package auth authenticates requests and authorizes them: client certificates and tokens, the RBAC
// authorizer, the built-in policy, and the review kinds. The apiserver package wires it. It must
// never grant anything that a stored role does not grant, except to the group system:masters.
package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
)

// RBAC authorizes by the stored roles and bindings. It follows them with watches and indexes them
// by subject, so that a decision reads no store. Until the first watch has delivered, it decides by
// the built-in policy.
type RBAC struct {
	sources map[schema.GroupResource]Source
	changed chan struct{} // holds at most one signal

	mu    sync.RWMutex
	kinds map[schema.GroupResource]map[string]runtime.Object // by namespace/name
	// bySubject and rules are indexes of kinds, for decisions. Their lists are never changed, only replaced and
	// extended.
	bySubject map[subject][]grant
	rules     map[roleKey][]rbacv1.PolicyRule
}

// Source is a stored kind: what the generic store offers.
type Source interface {
	rest.Lister
	rest.Watcher
}

// subject is one to whom bindings give roles: in a namespace, or everywhere.
type subject struct{ kind, name, namespace string }

type roleKey struct{ namespace, name string } // no namespace for a ClusterRole

// grant is a binding as seen from one of its subjects.
type grant struct {
	binding  string // "ClusterRoleBinding \"x\"" for the reason
	role     roleKey
	roleKind string
	to       string // "User \"x\"", the subject for the reason
}

// The four kinds.
var (
	clusterRoles        = rbacv1.SchemeGroupVersion.WithResource("clusterroles").GroupResource()
	clusterRoleBindings = rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings").GroupResource()
	roles               = rbacv1.SchemeGroupVersion.WithResource("roles").GroupResource()
	roleBindings        = rbacv1.SchemeGroupVersion.WithResource("rolebindings").GroupResource()
)

var (
	_ authorizer.Authorizer   = (*RBAC)(nil)
	_ authorizer.RuleResolver = (*RBAC)(nil)
)

// NewRBAC returns an authorizer with only the built-in policy. Run follows the stored
// objects.
func NewRBAC(policy Policy) *RBAC {
	r := &RBAC{kinds: map[schema.GroupResource]map[string]runtime.Object{}, changed: make(chan struct{}, 1)}
	for _, gr := range []schema.GroupResource{clusterRoles, clusterRoleBindings, roles, roleBindings} {
		r.kinds[gr] = map[string]runtime.Object{}
	}
	for _, o := range policy.Objects() {
		r.kinds[o.Resource][key(o.Object)] = o.Object
	}
	r.index()
	return r
}

// SetSources sets the stores of the four kinds; call it before Run.
func (r *RBAC) SetSources(find func(schema.GroupResource) Source) {
	r.sources = map[schema.GroupResource]Source{}
	for gr := range r.kinds {
		r.sources[gr] = find(gr)
	}
}

// Run follows the stored objects until ctx ends.
func (r *RBAC) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for gr, src := range r.sources {
		wg.Go(func() {
			follow(ctx, src, func(objs map[string]runtime.Object) { r.replace(gr, objs) },
				func(k string, obj runtime.Object) { r.change(gr, k, obj) })
		})
	}
	wg.Wait()
}

// replace takes over a complete list. An object of the built-in policy that has never been stored
// stays: it is about to be stored, and the watch will deliver it.
func (r *RBAC) replace(gr schema.GroupResource, objs map[string]runtime.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, builtin := range r.kinds[gr] {
		if _, ok := objs[k]; !ok && isUnstored(builtin) {
			objs[k] = builtin
		}
	}
	r.kinds[gr] = objs
	r.index()
}

// isUnstored reports whether obj has never been in a store: it has no version.
func isUnstored(obj runtime.Object) bool { return accessor(obj).GetResourceVersion() == "" }

func (r *RBAC) change(gr schema.GroupResource, k string, obj runtime.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.kinds[gr][k]; ok {
		r.remove(old)
		delete(r.kinds[gr], k)
	}
	if obj != nil {
		r.kinds[gr][k] = obj
		r.add(obj)
	}
	r.signal()
}

// signal announces a change of roles or bindings.
func (r *RBAC) signal() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// index computes bySubject and rules, and signals a change. mu is held.
func (r *RBAC) index() {
	r.bySubject, r.rules = map[subject][]grant{}, map[roleKey][]rbacv1.PolicyRule{}
	for _, objs := range r.kinds {
		for _, o := range objs {
			r.add(o)
		}
	}
	r.signal()
}

// add adds an object to bySubject or rules; remove removes it. mu is held.
func (r *RBAC) add(o runtime.Object) {
	if k, rules, ok := roleOf(o); ok {
		r.rules[k] = rules
		return
	}
	for s, g := range grantsOf(o) {
		r.bySubject[s] = append(r.bySubject[s], g)
	}
}

func (r *RBAC) remove(o runtime.Object) {
	if k, _, ok := roleOf(o); ok {
		delete(r.rules, k)
		return
	}
	for s, g := range grantsOf(o) {
		left := slices.DeleteFunc(slices.Clone(r.bySubject[s]), func(other grant) bool { return other == g })
		if r.bySubject[s] = left; len(left) == 0 {
			delete(r.bySubject, s)
		}
	}
}

// roleOf returns the rules of a role; false for a binding.
func roleOf(o runtime.Object) (roleKey, []rbacv1.PolicyRule, bool) {
	switch o := o.(type) {
	case *rbacv1.ClusterRole:
		return roleKey{name: o.Name}, o.Rules, true
	case *rbacv1.Role:
		return roleKey{o.Namespace, o.Name}, o.Rules, true
	}
	return roleKey{}, nil, false
}

// grantsOf returns what a binding grants, by subject.
func grantsOf(o runtime.Object) map[subject]grant {
	switch b := o.(type) {
	case *rbacv1.ClusterRoleBinding:
		return given(b.Subjects, "", b.RoleRef, fmt.Sprintf("ClusterRoleBinding %q", b.Name))
	case *rbacv1.RoleBinding:
		return given(b.Subjects, b.Namespace, b.RoleRef, fmt.Sprintf("RoleBinding %q", b.Name+"/"+b.Namespace))
	}
	panic(fmt.Sprintf("auth: %T is not a binding", o))
}

func given(to []rbacv1.Subject, namespace string, ref rbacv1.RoleRef, binding string) map[subject]grant {
	g := grant{binding: binding, roleKind: ref.Kind, role: roleKey{name: ref.Name}}
	if ref.Kind == "Role" {
		g.role.namespace = namespace
	}
	grants := make(map[subject]grant, len(to))
	for _, s := range to {
		of := subject{s.Kind, s.Name, namespace}
		g.to = fmt.Sprintf("%s %q", s.Kind, s.Name)
		if s.Kind == rbacv1.ServiceAccountKind {
			ns := s.Namespace
			if ns == "" {
				ns = namespace
			}
			of = subject{rbacv1.UserKind, serviceaccount.MakeUsername(ns, s.Name), namespace}
			g.to = fmt.Sprintf("%s %q", s.Kind, s.Name+"/"+ns)
		}
		if _, twice := grants[of]; !twice {
			grants[of] = g
		}
	}
	return grants
}

// usualRoles is how many roles most users have.
const usualRoles = 16

// heldRole is a role that a user has.
type heldRole struct {
	*grant
	rules []rbacv1.PolicyRule
}

// visit calls fn for each rule that u has in namespace and everywhere, the latter first, until it returns false, and
// returns the roles that are bound but missing. A role is visited once, by whatever number of bindings u has it: who
// may write bindings in one namespace could otherwise make each decision there as long as they like. Nothing is locked
// while fn runs.
func (r *RBAC) visit(u user.Info, namespace string, fn func(g *grant, rule *rbacv1.PolicyRule) bool) []missingRole {
	roles, missing := r.held(make([]heldRole, 0, usualRoles), u, namespace)
	for _, role := range roles {
		for i := range role.rules {
			if !fn(role.grant, &role.rules[i]) {
				return nil
			}
		}
	}
	return missing
}

// held appends the roles that u has in namespace and everywhere to roles, and returns those that are missing.
func (r *RBAC) held(roles []heldRole, u user.Info, namespace string) ([]heldRole, []missingRole) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var missing []missingRole
	var seen map[roleKey]bool // nil as long as there are few
	known := func(k roleKey) bool {
		if seen == nil && len(roles)+len(missing) < usualRoles {
			return slices.ContainsFunc(roles, func(h heldRole) bool { return h.role == k }) ||
				slices.ContainsFunc(missing, func(m missingRole) bool { return m.key == k })
		}
		if seen == nil {
			seen = map[roleKey]bool{}
			for _, h := range roles {
				seen[h.role] = true
			}
			for _, m := range missing {
				seen[m.key] = true
			}
		}
		twice := seen[k]
		seen[k] = true
		return twice
	}
	add := func(s subject) {
		grants := r.bySubject[s]
		for i := range grants {
			g := &grants[i]
			if known(g.role) {
				continue
			}
			if rules, ok := r.rules[g.role]; ok {
				roles = append(roles, heldRole{g, rules})
			} else {
				missing = append(missing, missingRole{g.roleKind, g.role.name, g.role})
			}
		}
	}
	places := []string{"", namespace}
	if namespace == "" {
		places = places[:1]
	}
	for _, place := range places {
		add(subject{rbacv1.UserKind, u.GetName(), place})
		for _, g := range u.GetGroups() {
			add(subject{rbacv1.GroupKind, g, place})
		}
	}
	return roles, missing
}

// missingRole is a role that is bound and does not exist.
type missingRole struct {
	kind, name string
	key        roleKey
}

// mostMissing is how many missing roles an error names.
const mostMissing = 100

// missingError names the missing roles, like upstream; nil if there are none.
func missingError(missing []missingRole) error {
	return aggregate(missing, func(m missingRole) error {
		return fmt.Errorf("%s.rbac.authorization.k8s.io %q not found", strings.ToLower(m.kind), m.name)
	})
}

// aggregate joins the errors of the first missing roles.
func aggregate(missing []missingRole, text func(missingRole) error) error {
	var errs []error
	for i, m := range missing {
		if i == mostMissing {
			errs = append(errs, fmt.Errorf("%d more roles not found", len(missing)-i))
			break
		}
		errs = append(errs, text(m))
	}
	return utilerrors.NewAggregate(errs)
}

// Authorize implements authorizer.Authorizer.
func (r *RBAC) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	u := a.GetUser()
	if u == nil {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	reason := ""
	missing := r.visit(u, a.GetNamespace(), func(g *grant, rule *rbacv1.PolicyRule) bool {
		if !allows(rule, a) {
			return true
		}
		reason = fmt.Sprintf("RBAC: allowed by %s of %s %q to %s", g.binding, g.roleKind, g.role.name, g.to)
		return false
	})
	if reason != "" {
		return authorizer.DecisionAllow, reason, nil
	}
	if err := missingError(missing); err != nil {
		reason = "RBAC: " + err.Error()
	}
	return authorizer.DecisionNoOpinion, reason, nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; RBAC has no conditions.
func (r *RBAC) ConditionsAwareAuthorize(ctx context.Context,
	a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(r.Authorize(ctx, a))
}

// EvaluateConditions implements authorizer.Authorizer.
func (r *RBAC) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision,
	authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver.
func (r *RBAC) RulesFor(_ context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo,
	[]authorizer.NonResourceRuleInfo, bool, error) {
	var res []authorizer.ResourceRuleInfo
	var non []authorizer.NonResourceRuleInfo
	rules, missing := r.policyRules(u, namespace)
	for _, p := range rules {
		if len(p.Resources) > 0 {
			res = append(res, &authorizer.DefaultResourceRuleInfo{Verbs: p.Verbs, APIGroups: p.APIGroups,
				Resources: p.Resources, ResourceNames: p.ResourceNames})
		}
		if len(p.NonResourceURLs) > 0 {
			non = append(non, &authorizer.DefaultNonResourceRuleInfo{Verbs: p.Verbs,
				NonResourceURLs: p.NonResourceURLs})
		}
	}
	return res, non, false, missingError(missing)
}

// policyRules returns all rules of u in namespace, each role's once, and the roles that are bound but missing, which
// grant nothing.
func (r *RBAC) policyRules(u user.Info, namespace string) ([]rbacv1.PolicyRule, []missingRole) {
	roles, missing := r.held(nil, u, namespace)
	var out []rbacv1.PolicyRule
	for _, role := range roles {
		out = append(out, role.rules...)
	}
	return out, missing
}

// roleRules returns the rules of the role a binding in namespace refers to.
func (r *RBAC) roleRules(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, bool) {
	k := roleKey{name: ref.Name}
	if ref.Kind == "Role" {
		k.namespace = namespace
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	rules, ok := r.rules[k]
	return rules, ok
}

// allows reports whether rule covers the request.
func allows(rule *rbacv1.PolicyRule, a authorizer.Attributes) bool {
	if !has(rule.Verbs, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		return slices.ContainsFunc(rule.NonResourceURLs, func(u string) bool { return coversPath(u, a.GetPath()) })
	}
	if !has(rule.APIGroups, a.GetAPIGroup()) {
		return false
	}
	if len(rule.ResourceNames) > 0 && !slices.Contains(rule.ResourceNames, a.GetName()) {
		return false
	}
	return slices.ContainsFunc(rule.Resources,
		func(res string) bool { return coversResource(res, a.GetResource(), a.GetSubresource()) })
}

func has(list []string, s string) bool {
	return slices.Contains(list, s) || slices.Contains(list, "*")
}

// coversResource matches "pods", "pods/log", "*/scale", and "*". An access review may name
// "pods/log" as one resource.
func coversResource(rule, resource, sub string) bool {
	if rule == "*" || sub == "" {
		return rule == "*" || rule == resource
	}
	name, ok := strings.CutSuffix(rule, sub)
	if !ok || !strings.HasSuffix(name, "/") {
		return false
	}
	name = name[:len(name)-1]
	return name == resource || name == "*"
}

func coversPath(rule, path string) bool {
	return rule == path || strings.HasSuffix(rule, "*") && strings.HasPrefix(path, strings.TrimRight(rule, "*"))
}
