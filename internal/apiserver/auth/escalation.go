package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"carob/internal/kinds/registry"
)

// PreventEscalation prevents privilege escalation: users cannot grant, by a role or binding, permissions that
// they do not have. It changes the descriptors of the four kinds and leaves others alone.
func PreventEscalation(r *registry.Resource, rbac *RBAC) {
	gr := r.GroupResource()
	if gr != clusterRoles && gr != clusterRoleBindings && gr != roles && gr != roleBindings {
		return
	}
	r.Customize = func(s *genericregistry.Store, _ *registry.Strategy) {
		s.BeginCreate = func(ctx context.Context, obj runtime.Object,
			_ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
			return settled, rbac.mayWrite(ctx, obj, nil)
		}
		s.BeginUpdate = func(ctx context.Context, obj, old runtime.Object,
			_ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
			return settled, rbac.mayWrite(ctx, obj, old)
		}
	}
}

func settled(context.Context, bool) {}

// granted is what a role or binding grants.
type granted struct {
	rules []rbacv1.PolicyRule
	// aggregates: it will also get the rules of roles that do not exist yet.
	aggregates bool
	// verb on resource permits the write without holding the rules: escalate or bind.
	verb, resource string
	// name is the object that needs the verb: the role itself or the bound role.
	name string
}

// everything is what an aggregated role may come to grant.
var everything = []rbacv1.PolicyRule{rule("*", "*", "*"), paths("*", "*")}

func (r *RBAC) mayWrite(ctx context.Context, obj, old runtime.Object) error {
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("no user on the request"))
	}
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) || old != nil && sameForUsers(obj, old) {
		return nil
	}
	m := accessor(obj)
	g, bound := grantedBy(obj, old)
	if info, ok := apirequest.RequestInfoFrom(ctx); ok && bound == nil {
		g.name = info.Name // none in a POST: the permission to escalate one role does not suffice
	}
	decision, _,
		err := r.Authorize(ctx,
		authorizer.AttributesRecord{User: u, Verb: g.verb, Namespace: m.GetNamespace(), APIGroup: rbacv1.GroupName,
			APIVersion: "*", Resource: g.resource, Name: g.name, ResourceRequest: true})
	if err == nil && decision == authorizer.DecisionAllow {
		return nil
	}
	resource := rbacv1.Resource(resourceName(obj))
	if bound != nil {
		if g.rules, ok = r.roleRules(*bound, m.GetNamespace()); !ok {
			return apierrors.NewNotFound(resource, bound.Name)
		}
	}
	held, unknown := r.policyRules(u, m.GetNamespace())
	if missing, rest := uncovered(held, g.rules); len(missing) > 0 || rest != "" {
		return apierrors.NewForbidden(resource, m.GetName(), notHeld(u, missing, rest, unknown, resource.String()))
	}
	if !g.aggregates {
		return nil
	}
	if missing, rest := uncovered(held, everything); len(missing) > 0 || rest != "" {
		return apierrors.NewForbidden(resource, m.GetName(),
			errors.New("must have cluster-admin privileges to use the aggregationRule"))
	}
	return nil
}

// sameForUsers reports whether obj differs from old at most in fields of the garbage collector.
// Labels count: by them, a role is aggregated into others. Kind and version do not: stored objects have none.
func sameForUsers(obj, old runtime.Object) bool {
	obj = obj.DeepCopyObject()
	obj.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	n, o := accessor(obj), accessor(old)
	n.SetOwnerReferences(o.GetOwnerReferences())
	n.SetFinalizers(o.GetFinalizers())
	n.SetManagedFields(o.GetManagedFields())
	return equality.Semantic.DeepEqual(obj, old)
}

// grantedBy returns what obj grants; for a binding without the rules, which are those of the
// returned role. old is the stored object, or nil.
func grantedBy(obj, old runtime.Object) (granted, *rbacv1.RoleRef) {
	bind := func(ref *rbacv1.RoleRef) (granted, *rbacv1.RoleRef) {
		g := granted{verb: "bind", resource: clusterRoles.Resource, name: ref.Name}
		if ref.Kind == "Role" {
			g.resource = roles.Resource
		}
		return g, ref
	}
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		g := granted{rules: o.Rules, verb: "escalate", resource: clusterRoles.Resource, name: o.Name,
			aggregates: aggregates(o)}
		if p, ok := old.(*rbacv1.ClusterRole); ok {
			g.aggregates = g.aggregates || aggregates(p)
		}
		return g, nil
	case *rbacv1.Role:
		return granted{rules: o.Rules, verb: "escalate", resource: roles.Resource, name: o.Name}, nil
	case *rbacv1.ClusterRoleBinding:
		return bind(&o.RoleRef)
	case *rbacv1.RoleBinding:
		return bind(&o.RoleRef)
	}
	panic(fmt.Sprintf("auth: %T is not guarded", obj))
}

func aggregates(o *rbacv1.ClusterRole) bool {
	return o.AggregationRule != nil && len(o.AggregationRule.ClusterRoleSelectors) > 0
}

func resourceName(obj runtime.Object) string {
	switch obj.(type) {
	case *rbacv1.ClusterRole:
		return clusterRoles.Resource
	case *rbacv1.Role:
		return roles.Resource
	case *rbacv1.ClusterRoleBinding:
		return clusterRoleBindings.Resource
	}
	return roleBindings.Resource
}

// maxErrorBytes is the approximate length of the rules in an error.
const maxErrorBytes = 1 << 20

// notHeld formats the rules that a user tried to grant without holding them: those that differ only
// in their verbs in one line, all sorted. rest says what is not in rules, if anything.
func notHeld(u user.Info, rules []rbacv1.PolicyRule, rest string, unknown []missingRole, resource string) error {
	var lines []string
	verbs := map[string][]string{}
	size := 0
	for i, p := range rules {
		line := describe(p)
		if size += len(line); i > 0 && size > maxErrorBytes {
			rest = moreNotHeld
			break
		}
		if len(p.NonResourceURLs) > 0 {
			lines = append(lines, fmt.Sprintf("{%s, Verbs:%q}", line, p.Verbs))
			continue
		}
		verbs[line] = append(verbs[line], p.Verbs...)
	}
	for line, v := range verbs {
		lines = append(lines, fmt.Sprintf("{%s, Verbs:%q}", line, v))
	}
	slices.Sort(lines)
	if lines = slices.Compact(lines); rest != "" {
		lines = append(lines, rest)
	}
	msg := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		u.GetName(), u.GetGroups(), strings.Join(lines, "\n"))
	if len(unknown) > 0 {
		msg += fmt.Sprintf("; resolution errors: %v", []error{aggregate(unknown, func(m missingRole) error {
			return fmt.Errorf("%s %q not found", resource, m.name)
		})})
	}
	return errors.New(msg)
}

// describe formats what a rule covers, without its verbs.
func describe(p rbacv1.PolicyRule) string {
	var out []string
	for _, f := range []struct {
		name   string
		values []string
	}{{"APIGroups", p.APIGroups}, {"Resources", p.Resources}, {"NonResourceURLs", p.NonResourceURLs},
		{"ResourceNames", p.ResourceNames}} {
		if len(f.values) > 0 {
			out = append(out, fmt.Sprintf("%s:%q", f.name, f.values))
		}
	}
	return strings.Join(out, ", ")
}
