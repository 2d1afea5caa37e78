package auth

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/policy.txt anew")

// TestPolicyIsPinned pins the permissions in a new cluster: a change shows as a line of a diff. It
// was compared item by item with Kubernetes v1.37.1; the comment of Builtin lists the differences.
func TestPolicyIsPinned(t *testing.T) {
	var lines []string
	add := func(kind, namespace, name string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, u := range r.NonResourceURLs {
				lines = append(lines,
					fmt.Sprintf("%s %s/%s: %s %s", kind, namespace, name, strings.Join(r.Verbs, ","), u))
			}
			for _, g := range r.APIGroups {
				for _, res := range r.Resources {
					lines = append(lines,
						strings.TrimSpace(fmt.Sprintf("%s %s/%s: %s %s/%s %s", kind, namespace, name,
							strings.Join(r.Verbs, ","), g, res, strings.Join(r.ResourceNames, ","))))
				}
			}
		}
	}
	bind := func(kind, namespace, name string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		for _, s := range subjects {
			lines = append(lines,
				fmt.Sprintf("%s %s/%s: %s %s to %s %s/%s", kind, namespace, name, ref.Kind, ref.Name, s.Kind,
					s.Namespace, s.Name))
		}
	}
	for _, o := range Builtin().Objects() {
		switch o := o.Object.(type) {
		case *rbacv1.ClusterRole:
			add("ClusterRole", "", o.Name, o.Rules)
		case *rbacv1.Role:
			add("Role", o.Namespace, o.Name, o.Rules)
		case *rbacv1.ClusterRoleBinding:
			bind("ClusterRoleBinding", "", o.Name, o.RoleRef, o.Subjects)
		case *rbacv1.RoleBinding:
			bind("RoleBinding", o.Namespace, o.Name, o.RoleRef, o.Subjects)
		}
	}
	slices.Sort(lines)
	got := strings.Join(slices.Compact(lines), "\n") + "\n"
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("testdata/policy.txt", []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/policy.txt")
	if err != nil {
		t.Fatal(err)
	}
	pinned := map[string]bool{}
	for line := range strings.Lines(string(want)) {
		pinned[line] = true
	}
	for line := range strings.Lines(got) {
		if !pinned[line] {
			t.Errorf("new:  %s", line)
		}
		delete(pinned, line)
	}
	for line := range pinned {
		t.Errorf("gone: %s", line)
	}
}
