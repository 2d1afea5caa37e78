package auth

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// The writer of a role or binding holds what it grants, or may escalate or bind; the answers are
// upstream's.
func TestGuard(t *testing.T) {
	bind := func(name, role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
	}
	bob, escalator := rbacv1.Subject{Kind: "User", Name: "bob"}, rbacv1.Subject{Kind: "User", Name: "escalator"}
	r := NewRBAC(Policy{
		ClusterRoles: []*rbacv1.ClusterRole{
			clusterRole("bobs", rule("get list", "core", "pods"), paths("get", "/metrics")),
			clusterRole("escalate", rule("escalate", rbacv1.GroupName, "clusterroles", "mine")),
			clusterRole("strong", rule("get create", "core", "secrets pods")),
		},
		ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{bind("b", "bobs", bob), bind("e", "escalate", escalator)},
		RoleBindings: []*rbacv1.RoleBinding{{ObjectMeta: metav1.ObjectMeta{Namespace: "dangling", Name: "d"},
			Subjects: []rbacv1.Subject{bob},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "nowhere"}}},
	})
	strong := clusterRole("x", rule("get create", "core", "secrets pods"))
	labeled := clusterRole("x", rule("get create", "core", "secrets pods"))
	labeled.Labels = map[string]string{"rbac.authorization.k8s.io/aggregate-to-edit": "true"}
	owned := clusterRole("x", rule("get create", "core", "secrets pods"))
	owned.Finalizers = []string{"a/b"}
	owned.TypeMeta = metav1.TypeMeta{Kind: "ClusterRole", APIVersion: "rbac.authorization.k8s.io/v1"} // as in a request
	aggregated := clusterRole("x")
	aggregated.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
	notHeld := `user "bob" (groups=["g"]) is attempting to grant RBAC permissions not currently held:` + "\n"
	for _, c := range []struct {
		name, who, path string // path: the name in the request's path
		obj, old        runtime.Object
		want            string // "" for allowed
	}{
		{"held", "bob", "", clusterRole("x", rule("get", "core", "pods"), paths("get", "/metrics")), nil, ""},
		{"verbs of a resource in one line", "bob", "", strong, nil,
			notHeld + `{APIGroups:[""], Resources:["pods"], Verbs:["create"]}` + "\n" +
				`{APIGroups:[""], Resources:["secrets"], Verbs:["get" "create"]}`},
		{"paths one by one", "bob", "", clusterRole("x", paths("get post", "/metrics /a*")), nil,
			notHeld + `{NonResourceURLs:["/a*"], Verbs:["get"]}` + "\n" + `{NonResourceURLs:["/a*"], Verbs:["post"]}` +
				"\n" + `{NonResourceURLs:["/metrics"], Verbs:["post"]}`},
		{"a label may hand out what others aggregate", "bob", "x", labeled, strong, notHeld + `{APIGroups`},
		{"what the garbage collector writes", "bob", "x", owned, strong, ""},
		{"fewer rules", "bob", "x", clusterRole("x"), strong, ""},
		{"aggregation", "bob", "", aggregated, nil, "must have cluster-admin privileges to use the aggregationRule"},
		{"the end of an aggregation", "bob", "x", clusterRole("x"), aggregated,
			"must have cluster-admin privileges to use the aggregationRule"},
		{"a role that is not there", "bob", "", bind("x", "nope", bob), nil,
			`clusterrolebindings.rbac.authorization.k8s.io "nope" not found`},
		{"a role that is", "bob", "", bind("x", "bobs", bob), nil, ""},
		{"a stronger role", "bob", "", bind("x", "strong", bob), nil, notHeld + `{APIGroups`},
		{"a binding that leads nowhere", "bob", "",
			&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "dangling", Name: "x"},
				Rules: []rbacv1.PolicyRule{rule("get", "core", "nodes")}}, nil,
			notHeld + `{APIGroups:[""], Resources:["nodes"], Verbs:["get"]}; resolution errors: [roles.rbac.authorization.k8s.io "nowhere" not found]`},
		{"escalation of one role", "escalator", "mine", clusterRole("mine", rule("*", "*", "*")), clusterRole("mine"),
			""},
		{"escalation by making one", "escalator", "", clusterRole("mine", rule("get", "core", "nodes")), nil,
			"not currently held"},
	} {
		ctx := apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: c.who, Groups: []string{"g"}})
		ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{IsResourceRequest: true, Name: c.path})
		err := r.mayWrite(ctx, c.obj, c.old)
		switch {
		case (err == nil) != (c.want == ""), err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: %v", c.name, err)
		case err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err):
			t.Errorf("%s: %#v", c.name, err)
		}
	}
}

// A binding that names a user twice grants its rules once, and an error names a missing role.
func TestRulesFor(t *testing.T) {
	r := NewRBAC(Policy{
		ClusterRoles: []*rbacv1.ClusterRole{clusterRole("r", rule("get", "core", "pods"),
			rule("list", "core", "pods"))},
		ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{
			{ObjectMeta: metav1.ObjectMeta{Name: "b"},
				Subjects: []rbacv1.Subject{{Kind: "User", Name: "u"}, {Kind: "Group", Name: "g"}},
				RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "c"},
				Subjects: []rbacv1.Subject{{Kind: "User", Name: "u"}, {Kind: "Group", Name: "g"}},
				RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: "gone"}},
		},
	})
	rules, _, _, err := r.RulesFor(t.Context(), &user.DefaultInfo{Name: "u", Groups: []string{"g"}}, "ns")
	if len(rules) != 2 || err == nil || err.Error() != `clusterrole.rbac.authorization.k8s.io "gone" not found` {
		t.Error(len(rules), err)
	}
}
