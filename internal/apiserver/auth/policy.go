package auth

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Policy is a set of roles and bindings.
type Policy struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
	Roles               []*rbacv1.Role
	RoleBindings        []*rbacv1.RoleBinding
}

// Object is a policy object with its resource.
type Object struct {
	Resource schema.GroupResource
	Object   runtime.Object
}

// Objects returns everything in p, roles first.
func (p Policy) Objects() []Object {
	var out []Object
	for _, o := range p.ClusterRoles {
		out = append(out, Object{clusterRoles, o})
	}
	for _, o := range p.Roles {
		out = append(out, Object{roles, o})
	}
	for _, o := range p.ClusterRoleBindings {
		out = append(out, Object{clusterRoleBindings, o})
	}
	for _, o := range p.RoleBindings {
		out = append(out, Object{roleBindings, o})
	}
	return out
}

const (
	autoUpdate  = rbacv1.AutoUpdateAnnotationKey
	bootstrap   = "kubernetes.io/bootstrapping"
	rbacDefault = "rbac-defaults"
	aggregateTo = "rbac.authorization.k8s.io/aggregate-to-"
)

// rule is a policy rule in words: lists are separated by spaces, "core" is the core group. names
// may be empty.
func rule(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	g := strings.Fields(groups)
	for i := range g {
		if g[i] == "core" {
			g[i] = ""
		}
	}
	return rbacv1.PolicyRule{Verbs: strings.Fields(verbs), APIGroups: g, Resources: strings.Fields(resources),
		ResourceNames: names}
}

func paths(verbs, urls string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Fields(verbs), NonResourceURLs: strings.Fields(urls)}
}

// Verb sets of most rules.
const (
	read      = "get list watch"
	write     = "create delete deletecollection patch update"
	readWrite = "create delete deletecollection get list patch update watch"
)

var eventsRule = rule("create patch update", "core events.k8s.io", "events")

func bootstrapMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{bootstrap: rbacDefault},
		Annotations: map[string]string{autoUpdate: "true"}}
}

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: bootstrapMeta("", name), Rules: rules}
}

// aggregated is a role that also has the rules of roles with its label.
func aggregated(name string, labels []string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	r := clusterRole(name, rules...)
	r.AggregationRule = &rbacv1.AggregationRule{}
	for _, l := range labels {
		r.AggregationRule.ClusterRoleSelectors = append(r.AggregationRule.ClusterRoleSelectors,
			metav1.LabelSelector{MatchLabels: map[string]string{aggregateTo + l: "true"}})
	}
	return r
}

func part(to string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	r := clusterRole("system:aggregate-to-"+to, rules...)
	r.Labels[aggregateTo+to] = "true"
	return r
}

func bindCluster(name, role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: bootstrapMeta("", name), Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
}

func namespacedRole(namespace, name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: bootstrapMeta(namespace, name), Rules: rules}
}

func bind(namespace, name, role string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{ObjectMeta: bootstrapMeta(namespace, name), Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role}}
}

func groupSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name}
}

func userSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}
}

func account(namespace, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
}

// concat joins rule lists into a new one.
func concat(lists ...[]rbacv1.PolicyRule) []rbacv1.PolicyRule { return slices.Concat(lists...) }
