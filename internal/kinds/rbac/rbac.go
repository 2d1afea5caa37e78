package rbac

import (
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of rbac.authorization.k8s.io.
func Kinds() []*registry.Resource {
	segment := func(name string, _ bool) []string { return content.IsPathSegmentName(name) }
	roleRow := table.Kind{
		Columns: []table.Column{table.NameColumn, {Name: "Role"}, table.AgeColumn, {Name: "Users", Wide: true},
			{Name: "Groups", Wide: true}, {Name: "ServiceAccounts", Wide: true}},
		Row: func(o runtime.Object, now time.Time) []any {
			switch b := o.(type) {
			case *rbacv1.RoleBinding:
				return append([]any{b.Name, b.RoleRef.Kind + "/" + b.RoleRef.Name, table.Age(b.CreationTimestamp, now)},
					subjectCells(b.Subjects)...)
			case *rbacv1.ClusterRoleBinding:
				return append([]any{b.Name, b.RoleRef.Kind + "/" + b.RoleRef.Name, table.Age(b.CreationTimestamp, now)},
					subjectCells(b.Subjects)...)
			}
			return nil
		},
	}
	return []*registry.Resource{
		registry.Of[rbacv1.ClusterRole,
			rbacv1.ClusterRoleList](registry.Resource{Kind: rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
			Plural: "clusterroles", Cluster: true,
			NoGeneration: true, CreateOnUpdate: true, ValidateName: segment, Table: table.CreatedAt}),
		registry.Of[rbacv1.ClusterRoleBinding,
			rbacv1.ClusterRoleBindingList](
			registry.Resource{Kind: rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"),
				Plural:  "clusterrolebindings",
				Cluster: true, NoGeneration: true, CreateOnUpdate: true, ValidateName: segment, Table: roleRow}),
		registry.Of[rbacv1.Role,
			rbacv1.RoleList](registry.Resource{Kind: rbacv1.SchemeGroupVersion.WithKind("Role"), Plural: "roles",
			NoGeneration: true, CreateOnUpdate: true,
			ValidateName: segment, Table: table.CreatedAt}),
		registry.Of[rbacv1.RoleBinding,
			rbacv1.RoleBindingList](registry.Resource{Kind: rbacv1.SchemeGroupVersion.WithKind("RoleBinding"),
			Plural: "rolebindings", NoGeneration: true,
			CreateOnUpdate: true, ValidateName: segment, Table: roleRow}),
	}
}

func subjectCells(subjects []rbacv1.Subject) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return []any{strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", ")}
}
