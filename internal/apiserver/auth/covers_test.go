package auth

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// What is not held is what the library finds.
func TestUncoveredAgainstLibrary(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	some := func(least int, of ...string) []string {
		rng.Shuffle(len(of), func(i, k int) { of[i], of[k] = of[k], of[i] })
		return slices.Clone(of[:least+rng.IntN(len(of)+1-least)])
	}
	random := func() (rules []rbacv1.PolicyRule) {
		for range rng.IntN(4) {
			r := rbacv1.PolicyRule{Verbs: some(0, "get", "list", "*")}
			if rng.IntN(3) > 0 {
				r.APIGroups, r.Resources = some(0, "", "apps", "*"), some(0, "pods", "pods/log", "*/log", "*")
				r.ResourceNames = some(0, "a", "b", "")
			}
			if rng.IntN(3) == 0 {
				r.NonResourceURLs = some(0, "/a", "/a/b", "/a/*", "*")
			}
			rules = append(rules, r)
		}
		return rules
	}
	found := 0
	for range 20_000 {
		held, rules := random(), random()
		got, rest := uncovered(held, rules)
		_, want := validation.Covers(held, rules)
		if found += len(want); rest != "" || len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("%v grant %v: %v (%s), want %v", held, rules, got, rest, want)
		}
	}
	if found == 0 {
		t.Error("everything was held")
	}
}

// number returns n different texts.
func number(n int, format string) (texts []string) {
	for i := range n {
		texts = append(texts, fmt.Sprintf(format, i))
	}
	return texts
}

// A role of a megabyte grants 10^12 permissions. A user who does not hold them gets an error that names some of
// them; a user who holds them all may grant them.
func TestRoleOfManyPermissions(t *testing.T) {
	subject := func(name string) []rbacv1.Subject { return []rbacv1.Subject{{Kind: "User", Name: name}} }
	many := rbacv1.PolicyRule{Verbs: number(10_000, "v%d"), APIGroups: number(10_000, "g%d"),
		Resources: number(10_000, "r%d")}
	policy := Policy{}
	for name, rules := range map[string][]rbacv1.PolicyRule{
		"poor": {rule("get", "core", "pods")}, "rich": {rule("*", "*", "*")},
		// Together, they hold everything, but no rule alone does.
		"halves": {{Verbs: many.Verbs[:5000], APIGroups: []string{"*"}, Resources: []string{"*"}},
			{Verbs: many.Verbs[5000:], APIGroups: []string{"*"}, Resources: []string{"*"}}},
	} {
		policy.ClusterRoles = append(policy.ClusterRoles, clusterRole(name, rules...))
		policy.ClusterRoleBindings = append(policy.ClusterRoleBindings, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subject(name),
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}})
	}
	r := NewRBAC(policy)
	long := many
	long.Resources = []string{strings.Repeat("x", 1<<20)}
	urls := rbacv1.PolicyRule{Verbs: many.Verbs, NonResourceURLs: number(10_000, "/u%d")}
	for _, c := range []struct {
		who, want string // "" for allowed
		granted   rbacv1.PolicyRule
	}{
		{"poor", "\n" + moreNotHeld, many}, {"poor", "\n" + moreNotHeld, long}, {"poor", "\n" + moreNotHeld, urls},
		{"rich", "", many}, {"rich", "", long}, {"halves", "\n" + notCompared, many},
	} {
		ctx := apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: c.who})
		err := r.mayWrite(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "x"},
			Rules: []rbacv1.PolicyRule{c.granted}}, nil)
		switch {
		case (err == nil) != (c.want == ""), err != nil && !strings.HasSuffix(err.Error(), c.want):
			t.Errorf("%s: %.1000v", c.who, err)
		case err != nil && len(err.Error()) > 4*maxErrorBytes:
			t.Errorf("%s: an error of %d bytes", c.who, len(err.Error()))
		}
	}
}

// Who may write bindings in a namespace cannot make decisions there slow: a role counts once, whatever the number of
// bindings, and an error names few of the missing roles.
func TestManyBindings(t *testing.T) {
	everybody := []rbacv1.Subject{groupSubject(user.AllAuthenticated)}
	bound := func(name, role string) *rbacv1.RoleBinding { return bind("n", name, role, everybody...) }
	policy := Policy{Roles: []*rbacv1.Role{namespacedRole("n", "same", rule("get", "core", "pods"),
		rule("list", "core", "pods"))}}
	for i := range 1000 {
		policy.RoleBindings = append(policy.RoleBindings, bound(fmt.Sprint("same", i), "same"),
			bound(fmt.Sprint("gone", i), fmt.Sprint("gone", i)), bound(fmt.Sprint("again", i), fmt.Sprint("gone", i)))
	}
	r := NewRBAC(policy)
	u := &user.DefaultInfo{Name: "u", Groups: []string{user.AllAuthenticated}}
	for namespace, want := range map[string][2]int{"n": {2, 1000}, "other": {0, 0}} {
		visited := 0
		missing := r.visit(u, namespace, func(*grant, *rbacv1.PolicyRule) bool { visited++; return true })
		if visited != want[0] || len(missing) != want[1] {
			t.Errorf("%s: %d rules, %d missing roles", namespace, visited, len(missing))
		}
	}
	a := attributesOf("delete", "core/pods", "n/p")
	a.User = u
	_, reason, err := r.Authorize(t.Context(), a)
	if err != nil || !strings.Contains(reason, "900 more roles not found") || len(reason) > 100*mostMissing {
		t.Error(reason, err)
	}
	if rules, _, _, _ := r.RulesFor(t.Context(), u, "n"); len(rules) != 2 {
		t.Error(len(rules))
	}
}

// Nothing is locked while rules are compared: a decision that takes long delays no change of a role, behind which all
// other decisions would wait.
func TestDecisionLocksNothing(t *testing.T) {
	r := NewRBAC(Policy{ClusterRoles: []*rbacv1.ClusterRole{clusterRole("r", rule("get", "core", "pods"))},
		ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{bindCluster("b", "r", userSubject("u"))}})
	inside := false
	r.visit(&user.DefaultInfo{Name: "u"}, "n", func(*grant, *rbacv1.PolicyRule) bool {
		if inside = r.mu.TryLock(); inside {
			r.mu.Unlock()
			r.change(clusterRoleBindings, "/b", nil) // the decision goes on with what it has read
		}
		return true
	})
	if !inside {
		t.Error("the index is locked")
	}
	a := attributesOf("get", "core/pods", "n/p")
	a.User = &user.DefaultInfo{Name: "u"}
	if decision, _, _ := r.Authorize(t.Context(), a); decision == authorizer.DecisionAllow {
		t.Error("the deleted binding still grants")
	}
}

// The rules of an aggregated role are compared by a hash, not each with each, and in their order.
func TestAggregateManyRules(t *testing.T) {
	part := func(name string, rules []rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": "v"}},
			Rules: rules}
	}
	var rules []rbacv1.PolicyRule
	for i := range 100_000 {
		rules = append(rules, rule("get", "core", "pods", fmt.Sprint(i)))
	}
	sum := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "sum", ResourceVersion: "1"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{"l": "v"}}, {}}}}
	r := NewRBAC(Policy{ClusterRoles: []*rbacv1.ClusterRole{part("a", rules), part("b", rules), sum}})
	got := r.aggregated()
	if len(got) != 1 || !reflect.DeepEqual(got[0].Rules, rules) {
		t.Errorf("%d roles", len(got))
	}
}

// A role that could not be written is written later, without another change.
func TestAggregateAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		part := clusterRole("part", rule("get", "core", "pods"))
		part.Labels["l"] = "v"
		sum := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "sum", ResourceVersion: "1"},
			AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
				{MatchLabels: map[string]string{"l": "v"}}}}}
		r := NewRBAC(Policy{ClusterRoles: []*rbacv1.ClusterRole{part, sum}})
		ctx, cancel := context.WithCancel(t.Context())
		tries, done := 0, make(chan struct{})
		go func() {
			defer close(done)
			r.Aggregate(ctx, func(_ context.Context, role *rbacv1.ClusterRole) error {
				if tries++; tries < 4 {
					return errors.New("the database is full")
				}
				r.change(clusterRoles, "/sum", role)
				return nil
			})
		}()
		time.Sleep(time.Hour)
		cancel()
		<-done
		if rules, _ := r.roleRules(rbacv1.RoleRef{Name: "sum"}, ""); tries != 4 || len(rules) != 1 {
			t.Errorf("%d tries, %v", tries, rules)
		}
	})
}
