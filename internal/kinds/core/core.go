package core

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of the core group except pods, services, volumes, and replication
// controllers.
func Kinds() []*registry.Resource {
	return []*registry.Resource{namespaces(), nodes(), events(), configMaps(), secrets(), serviceAccounts(),
		endpoints(), limitRanges(), resourceQuotas(),
		podTemplates()}
}

func configMaps() *registry.Resource {
	return registry.Of[corev1.ConfigMap, corev1.ConfigMapList](registry.Resource{
		Kind: registry.CoreKind("ConfigMap"), Plural: "configmaps", ShortNames: []string{"cm"}, NoGeneration: true,
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Data", Description: "Number of keys"},
			table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				c := o.(*corev1.ConfigMap)
				return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), table.Age(c.CreationTimestamp, now)}
			}},
	})
}

func secrets() *registry.Resource {
	return registry.Of[corev1.Secret, corev1.SecretList](registry.Resource{
		Kind: registry.CoreKind("Secret"), Plural: "secrets", NoGeneration: true,
		Fields: map[string]func(runtime.Object) string{
			"type": func(o runtime.Object) string { return string(o.(*corev1.Secret).Type) }},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			// Clients without support for types keep the old one.
			if s := obj.(*corev1.Secret); s.Type == "" {
				s.Type = old.(*corev1.Secret).Type
			}
		},
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Type"},
			{Name: "Data", Description: "Number of keys"}, table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				s := o.(*corev1.Secret)
				return []any{s.Name, string(s.Type), int64(len(s.Data)), table.Age(s.CreationTimestamp, now)}
			}},
	})
}

func serviceAccounts() *registry.Resource {
	return registry.Of[corev1.ServiceAccount, corev1.ServiceAccountList](registry.Resource{
		Kind: registry.CoreKind("ServiceAccount"), ReturnDeleted: true, Plural: "serviceaccounts",
		ShortNames: []string{"sa"}, NoGeneration: true, ValidateName: apivalidation.ValidateServiceAccountName,
		PrepareCreate: namesOfSecrets,
		PrepareUpdate: func(ctx context.Context, obj, _ runtime.Object) { namesOfSecrets(ctx, obj) },
		Table: table.Kind{Columns: []table.Column{table.NameColumn,
			{Name: "Secrets", Description: "Number of token secrets"}, table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				s := o.(*corev1.ServiceAccount)
				return []any{s.Name, int64(len(s.Secrets)), table.Age(s.CreationTimestamp, now)}
			}},
	})
}

// namesOfSecrets keeps only the names in an account's references to secrets.
func namesOfSecrets(_ context.Context, obj runtime.Object) {
	a, ok := obj.(*corev1.ServiceAccount)
	if !ok {
		return
	}
	for i := range a.Secrets {
		a.Secrets[i] = corev1.ObjectReference{Name: a.Secrets[i].Name}
	}
}

func endpoints() *registry.Resource {
	return registry.Of[corev1.Endpoints, corev1.EndpointsList](registry.Resource{
		Kind: registry.CoreKind("Endpoints"), Plural: "endpoints", ShortNames: []string{"ep"}, NoGeneration: true,
		CreateOnUpdate: true,
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Endpoints"}, table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				e := o.(*corev1.Endpoints)
				return []any{e.Name, endpointAddresses(e.Subsets), table.Age(e.CreationTimestamp, now)}
			}},
	})
}

func limitRanges() *registry.Resource {
	return registry.Of[corev1.LimitRange, corev1.LimitRangeList](registry.Resource{
		Kind: registry.CoreKind("LimitRange"), Plural: "limitranges", ShortNames: []string{"limits"},
		NoGeneration: true, CreateOnUpdate: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			if l := obj.(*corev1.LimitRange); l.Name == "" {
				l.Name = string(uuid.NewUUID())
			}
		},
		Table: table.CreatedAt,
	})
}

func resourceQuotas() *registry.Resource {
	return registry.Of[corev1.ResourceQuota, corev1.ResourceQuotaList](registry.Resource{
		Kind: registry.CoreKind("ResourceQuota"), ReturnDeleted: true, Plural: "resourcequotas",
		ShortNames: []string{"quota"}, Status: true, StatusMetadata: true, NoGeneration: true,
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Request"}, {Name: "Limit"},
			table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				q := o.(*corev1.ResourceQuota)
				names := make([]string, 0, len(q.Status.Hard))
				for n := range q.Status.Hard {
					names = append(names, string(n))
				}
				sort.Strings(names)
				var request, limit []string
				for _, n := range names {
					used, hard := q.Status.Used[corev1.ResourceName(n)], q.Status.Hard[corev1.ResourceName(n)]
					s := fmt.Sprintf("%s: %s/%s", n, used.String(), hard.String())
					if strings.HasPrefix(n, "limits.") {
						limit = append(limit, s)
					} else {
						request = append(request, s)
					}
				}
				return []any{q.Name, strings.Join(request, ", "), strings.Join(limit, ", "),
					table.Age(q.CreationTimestamp, now)}
			}},
	})
}

func podTemplates() *registry.Resource {
	return registry.Of[corev1.PodTemplate, corev1.PodTemplateList](registry.Resource{
		Kind: registry.CoreKind("PodTemplate"), ReturnDeleted: true, Plural: "podtemplates",
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			if t := obj.(*corev1.PodTemplate); !equality.Semantic.DeepEqual(t.Template,
				old.(*corev1.PodTemplate).Template) {
				t.Generation++
			}
		},
		Template: func(o runtime.Object) *corev1.PodSpec { return &o.(*corev1.PodTemplate).Template.Spec },
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Containers"}, {Name: "Images"},
			{Name: "Pod Labels"}},
			Row: func(o runtime.Object, _ time.Time) []any {
				t := o.(*corev1.PodTemplate)
				names, images := table.Containers(t.Template.Spec.Containers)
				return []any{t.Name, names, images, table.LabelMap(t.Template.Labels)}
			}},
	})
}
