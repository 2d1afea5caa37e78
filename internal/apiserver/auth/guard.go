package auth

import (
	"context"
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
	"k8s.io/component-helpers/auth/rbac/validation"

	"carob/internal/apiserver/resources"
)

// Guard keeps users from giving away by a role or binding what they do not have
// themselves. It changes the descriptors of the four kinds and leaves others alone.
func Guard(r *resources.Resource, rbac *RBAC) {
	gr := r.GroupResource()
	if gr != clusterRoles && gr != clusterRoleBindings && gr != roles && gr != roleBindings {
		return
	}
	r.Customize = func(s *genericregistry.Store, _ *resources.Strategy) {
		s.BeginCreate = func(ctx context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
			return settled, rbac.mayWrite(ctx, obj, nil)
		}
		s.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
			return settled, rbac.mayWrite(ctx, obj, old)
		}
	}
}

func settled(context.Context, bool) {}

// granted is what a role or binding hands out.
type granted struct {
	rules []rbacv1.PolicyRule
	// same reports that an update leaves the rules (or reference and subjects) as they were.
	same bool
	// verb on resource allows the write without holding the rules: escalate or bind.
	verb, resource string
	// name is the object the verb is needed for: the role itself or the bound role.
	name, namespace string
}

func (r *RBAC) mayWrite(ctx context.Context, obj, old runtime.Object) error {
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("no user on the request"))
	}
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	g := r.granted(obj, old)
	if g.same {
		return nil
	}
	decision, _, err := r.Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: g.verb, Namespace: g.namespace, APIGroup: rbacv1.GroupName,
		APIVersion: rbacv1.SchemeGroupVersion.Version, Resource: g.resource, Name: g.name, ResourceRequest: true})
	if err == nil && decision == authorizer.DecisionAllow {
		return nil
	}
	covered, missing := validation.Covers(r.PolicyRules(u, g.namespace), g.rules)
	if covered {
		return nil
	}
	m := accessor(obj)
	return apierrors.NewForbidden(rbacv1.Resource(resourceName(obj)), m.GetName(),
		fmt.Errorf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s", u.GetName(), u.GetGroups(), describe(missing)))
}

func (r *RBAC) granted(obj, old runtime.Object) granted {
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		g := granted{rules: o.Rules, verb: "escalate", resource: clusterRoles.Resource, name: o.Name}
		if p, ok := old.(*rbacv1.ClusterRole); ok {
			g.same = equality.Semantic.DeepEqual(o.Rules, p.Rules) && equality.Semantic.DeepEqual(o.AggregationRule, p.AggregationRule)
		}
		if o.AggregationRule != nil {
			// Whatever roles match later becomes part of this one.
			g.rules = []rbacv1.PolicyRule{rule("*", "*", "*"), paths("*", "*")}
		}
		return g
	case *rbacv1.Role:
		g := granted{rules: o.Rules, verb: "escalate", resource: roles.Resource, name: o.Name, namespace: o.Namespace}
		if p, ok := old.(*rbacv1.Role); ok {
			g.same = equality.Semantic.DeepEqual(o.Rules, p.Rules)
		}
		return g
	case *rbacv1.ClusterRoleBinding:
		g := r.bound(o.RoleRef, "")
		if p, ok := old.(*rbacv1.ClusterRoleBinding); ok {
			g.same = o.RoleRef == p.RoleRef && slices.Equal(o.Subjects, p.Subjects)
		}
		return g
	case *rbacv1.RoleBinding:
		g := r.bound(o.RoleRef, o.Namespace)
		if p, ok := old.(*rbacv1.RoleBinding); ok {
			g.same = o.RoleRef == p.RoleRef && slices.Equal(o.Subjects, p.Subjects)
		}
		return g
	}
	panic(fmt.Sprintf("auth: %T is not guarded", obj))
}

func (r *RBAC) bound(ref rbacv1.RoleRef, namespace string) granted {
	g := granted{verb: "bind", resource: clusterRoles.Resource, name: ref.Name, namespace: namespace}
	if ref.Kind == "Role" {
		g.resource = roles.Resource
	}
	rules, ok := r.RoleRules(ref, namespace)
	if !ok {
		// Nobody can say what a role that does not exist yet will hold.
		rules = []rbacv1.PolicyRule{rule("*", "*", "*")}
	}
	g.rules = rules
	return g
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

func describe(rules []rbacv1.PolicyRule) string {
	var out strings.Builder
	for _, p := range rules {
		out.WriteString("{")
		sep := ""
		for _, f := range []struct {
			name   string
			values []string
		}{{"APIGroups", p.APIGroups}, {"Resources", p.Resources}, {"ResourceNames", p.ResourceNames}, {"NonResourceURLs", p.NonResourceURLs}, {"Verbs", p.Verbs}} {
			if len(f.values) > 0 {
				fmt.Fprintf(&out, "%s%s:%q", sep, f.name, f.values)
				sep = ", "
			}
		}
		out.WriteString("}\n")
	}
	return out.String()
}
