package core

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

func namespaces() *registry.Resource {
	return registry.Of[corev1.Namespace, corev1.NamespaceList](registry.Resource{
		Kind: registry.CoreKind("Namespace"), ReturnDeleted: true, Plural: "namespaces", ShortNames: []string{"ns"},
		Cluster: true, Status: true, StatusMetadata: true, NoGeneration: true,
		ValidateName: apivalidation.ValidateNamespaceName,
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			ns := obj.(*corev1.Namespace)
			ns.Status.Phase = corev1.NamespaceActive
			// Without this finalizer, a namespace would be removed while it still has content.
			if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
				ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
			setNameLabel(ns)
		},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			ns := obj.(*corev1.Namespace)
			ns.Spec.Finalizers = old.(*corev1.Namespace).Spec.Finalizers
			setNameLabel(ns)
		},
		Fields: map[string]func(runtime.Object) string{
			"status.phase": func(o runtime.Object) string { return string(o.(*corev1.Namespace).Status.Phase) }},
		Customize: func(s *genericregistry.Store,
			_ *registry.Strategy) {
			s.ShouldDeleteDuringUpdate = namespaceIsEmpty
		},
		Main: newNamespaceStorage, Subresources: namespaceSubresources,
		Table: table.Kind{Columns: []table.Column{table.NameColumn,
			{Name: "Status", Description: "The status of the namespace"}, table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				ns := o.(*corev1.Namespace)
				return []any{ns.Name, string(ns.Status.Phase), table.Age(ns.CreationTimestamp, now)}
			}},
	})
}

func setNameLabel(ns *corev1.Namespace) {
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}
