package auth

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// For any sequence of additions, changes, and deletions of roles and bindings, decisions are the
// same as if all objects were read at once.
func TestIndexFollowsChanges(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r := NewRBAC(Builtin())
		for range 60 {
			gr, o := randomPolicy(rng)
			k := key(o)
			if rng.IntN(3) == 0 {
				o = nil
			}
			r.change(gr, k, o)
		}
		fresh := &RBAC{kinds: r.kinds, changed: make(chan struct{}, 1)}
		fresh.index()
		sorted := func(m map[subject][]grant) map[subject][]grant {
			for _, g := range m {
				slices.SortFunc(g, func(a, b grant) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			}
			return m
		}
		if !reflect.DeepEqual(r.rules, fresh.rules) ||
			!reflect.DeepEqual(sorted(r.bySubject), sorted(fresh.bySubject)) {
			t.Fatalf("seed %d: the index is not what the objects say", seed)
		}
	}
}

func randomPolicy(rng *rand.Rand) (schema.GroupResource, runtime.Object) {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	meta := metav1.ObjectMeta{Name: pick("a", "b", "view"), Namespace: pick("x", "y")}
	rules := []rbacv1.PolicyRule{rule(pick("get", "list"), "core", pick("pods", "secrets"))}
	var subjects []rbacv1.Subject
	for range rng.IntN(4) { // including the same one twice
		subjects = append(subjects,
			rbacv1.Subject{Kind: pick("User", "Group", "ServiceAccount"), Name: pick("jane", "max"),
				Namespace: pick("", "x")})
	}
	ref := rbacv1.RoleRef{Kind: pick("Role", "ClusterRole"), Name: pick("a", "b")}
	switch rng.IntN(4) {
	case 0:
		meta.Namespace = ""
		return clusterRoles, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
	case 1:
		return roles, &rbacv1.Role{ObjectMeta: meta, Rules: rules}
	case 2:
		meta.Namespace = ""
		return clusterRoleBindings, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}
	}
	return roleBindings, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}
}
