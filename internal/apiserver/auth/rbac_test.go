package auth

import (
	"context"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// attributesOf returns the attributes of "verb group/resource/subresource namespace/name" or "verb /path".
func attributesOf(verb, what, where string) authorizer.AttributesRecord {
	a := authorizer.AttributesRecord{Verb: verb}
	if strings.HasPrefix(what, "/") {
		a.Path = what
		return a
	}
	a.ResourceRequest = true
	parts := append(strings.Split(what, "/"), "", "")
	a.APIGroup, a.Resource, a.Subresource = parts[0], parts[1], parts[2]
	if a.APIGroup == "core" {
		a.APIGroup = ""
	}
	a.Namespace, a.Name, _ = strings.Cut(where, "/")
	return a
}

// The decisions of the built-in policy for the identities of carob's own parts and of users.
func TestBuiltinPolicy(t *testing.T) {
	r := NewRBAC(Builtin())
	group := func(name string, groups ...string) user.Info {
		return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
	}
	controller := func(name string) user.Info {
		return group("system:serviceaccount:kube-system:"+name, "system:serviceaccounts",
			"system:serviceaccounts:kube-system")
	}
	for _, tc := range []struct {
		who               user.Info
		verb, what, where string
		want              bool
	}{
		{group("anybody"), "create", "authorization.k8s.io/selfsubjectaccessreviews", "", true},
		{group("anybody"), "get", "/api/v1", "", true},
		{group("anybody"), "get", "/metrics", "", false},
		{group("anybody"), "list", "core/pods", "default/", false},
		{group("root", user.SystemPrivilegedGroup), "delete", "core/nodes", "/n", true},
		{group(user.KubeScheduler), "create", "core/pods/binding", "default/p", true},
		{group(user.KubeScheduler), "patch", "core/pods/status", "default/p", true},
		{group(user.KubeScheduler), "update", "core/pods", "default/p", false},
		{group(user.KubeScheduler), "get", "core/secrets", "default/s", false},
		{group("system:node:n", user.NodesGroup), "get", "core/secrets", "default/s", false}, // the node authorizer's
		{group("system:node:n", user.NodesGroup), "create", "apps/deployments", "default/d", false},
		{controller("namespace-controller"), "deletecollection", "apps/deployments", "x/", true},
		{controller("namespace-controller"), "update", "core/namespaces/finalize", "/x", true},
		{controller("service-account-controller"), "create", "core/serviceaccounts", "x/default", true},
		{controller("service-account-controller"), "create", "core/pods", "x/p", false},
		{controller("root-ca-cert-publisher"), "create", "core/configmaps", "x/kube-root-ca.crt", true},
		{&user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, "get", "/readyz", "",
			true},
		{&user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, "get", "/api", "", false},
	} {
		a := attributesOf(tc.verb, tc.what, tc.where)
		a.User = tc.who
		got, reason, err := r.Authorize(t.Context(), a)
		if err != nil || (got == authorizer.DecisionAllow) != tc.want {
			t.Errorf("%s: %s %s %s: %v (%s), %v", tc.who.GetName(), tc.verb, tc.what, tc.where, got, reason, err)
		}
	}
}

func TestRuleMatching(t *testing.T) {
	for _, tc := range []struct {
		rule              rbacv1.PolicyRule
		verb, what, where string
		want              bool
	}{
		{rule("get", "core", "pods"), "get", "core/pods", "a/b", true},
		{rule("get", "core", "pods"), "get", "core/pods/log", "a/b", false},
		{rule("get", "core", "pods/*"), "get", "core/pods/log", "a/b", false}, // upstream has only "*/sub" and "*"
		{rule("get", "core", "*/log"), "get", "core/pods/log", "a/b", true},
		{rule("get", "core", "*/log"), "get", "core/pods", "a/b", false},
		{rule("get", "core", "*"), "get", "core/pods/log", "a/b", true},
		{rule("*", "*", "*"), "escalate", "x/y", "a/b", true},
		{rule("get", "core", "pods", "b"), "get", "core/pods", "a/b", true},
		{rule("get", "core", "pods", "b"), "get", "core/pods", "a/c", false},
		{rule("get", "core", "pods", "b"), "list", "core/pods", "a/", false},
		{rule("get", "apps", "pods"), "get", "core/pods", "a/b", false},
		{paths("get", "/a /b/*"), "get", "/a", "", true},
		{paths("get", "/a /b/*"), "get", "/a/c", "", false},
		{paths("get", "/a /b/*"), "get", "/b/c/d", "", true},
		{paths("get", "*"), "get", "/x", "", true},
		{paths("get", "/a"), "post", "/a", "", false},
		{paths("get", "/a"), "get", "core/pods", "a/b", false},
	} {
		if got := allows(&tc.rule, attributesOf(tc.verb, tc.what, tc.where)); got != tc.want {
			t.Errorf("%v: %s %s %s: %v", tc.rule, tc.verb, tc.what, tc.where, got)
		}
	}
}

// An access review may name "pods/log" as one resource, which also means a request with a
// subresource.
func TestCoveredResources(t *testing.T) {
	for _, c := range []struct {
		rule, resource, sub string
		want                bool
	}{
		{"pods/log", "pods/log", "", true}, {"pods/log", "pods", "log", true}, {"pods/log", "pods", "", false},
		{"pods", "pods/log", "", false},
		{"*/log", "pods/log", "", false}, {"*/log", "pods", "log", true}, {"*/log", "pods", "blog", false},
		{"a*/log", "pods", "log", false}, {"pods", "pods", "log", false},
		{"*", "pods/log", "", true}, {"/log", "", "log", true}, {"log", "pods", "log", false},
	} {
		if got := coversResource(c.rule, c.resource, c.sub); got != c.want {
			t.Errorf("%q covers %q %q: %v", c.rule, c.resource, c.sub, got)
		}
	}
}

func TestBindingScope(t *testing.T) {
	r := NewRBAC(Policy{
		ClusterRoles: []*rbacv1.ClusterRole{clusterRole("reader", rule("get", "core", "pods"))},
		Roles:        []*rbacv1.Role{namespacedRole("a", "local", rule("get", "core", "secrets"))},
		RoleBindings: []*rbacv1.RoleBinding{
			bind("a", "local", "local", userSubject("u")),
			{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "reader"},
				Subjects: []rbacv1.Subject{account("", "sa")},
				RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: "reader"}},
			bind("b", "dangling", "gone", userSubject("u")),
		},
	})
	for _, tc := range []struct {
		user, what, where string
		want              bool
		reason            string
	}{
		{"u", "core/secrets", "a/s", true, `RBAC: allowed by RoleBinding "local/a" of Role "local" to User "u"`},
		{"u", "core/secrets", "c/s", false, ""},
		{"u", "core/secrets", "b/s", false, `RBAC: role.rbac.authorization.k8s.io "gone" not found`},
		// A service account without a namespace is in the binding's.
		{"system:serviceaccount:a:sa", "core/pods", "a/p", true,
			`RBAC: allowed by RoleBinding "reader/a" of ClusterRole "reader" to ServiceAccount "sa/a"`},
		{"system:serviceaccount:a:sa", "core/pods", "b/p", false, ""},
	} {
		a := attributesOf("get", tc.what, tc.where)
		a.User = &user.DefaultInfo{Name: tc.user}
		got, reason, err := r.Authorize(context.Background(), a)
		if err != nil || (got == authorizer.DecisionAllow) != tc.want || reason != tc.reason {
			t.Errorf("%s %s %s: %v, %q, %v", tc.user, tc.what, tc.where, got, reason, err)
		}
	}
}

// A stored list replaces the known objects, except the built-in policy that is still to be stored.
func TestReplaceKeepsUnstored(t *testing.T) {
	r := NewRBAC(Policy{ClusterRoles: []*rbacv1.ClusterRole{clusterRole("builtin", rule("get", "core", "pods"))}})
	stored := clusterRole("stored", rule("get", "core", "nodes"))
	stored.ResourceVersion = "5"
	r.replace(clusterRoles, map[string]runtime.Object{key(stored): stored})
	for _, name := range []string{"builtin", "stored"} {
		if _, ok := r.roleRules(rbacv1.RoleRef{Kind: "ClusterRole", Name: name}, ""); !ok {
			t.Errorf("%s is gone", name)
		}
	}
	r.replace(clusterRoles, map[string]runtime.Object{})
	if _, ok := r.roleRules(rbacv1.RoleRef{Kind: "ClusterRole", Name: "stored"}, ""); ok {
		t.Error("a deleted role is still there")
	}
}

func TestMerge(t *testing.T) {
	want := clusterRole("r", rule("get", "core", "pods"), rule("list", "core", "nodes"))
	changed := clusterRole("r", rule("get", "core", "pods"), rule("watch", "core", "secrets"))
	got, differs := Merge(changed, want)
	rules := got.(*rbacv1.ClusterRole).Rules
	if !differs || len(rules) != 3 || len(changed.Rules) != 2 {
		t.Errorf("%v, %v", differs, rules)
	}
	if _, differs := Merge(got, want); differs {
		t.Error("merging twice changes it again")
	}
	changed.Annotations[autoUpdate] = "false"
	if _, differs := Merge(changed, want); differs {
		t.Error("changed a role that is not to be updated")
	}
}
