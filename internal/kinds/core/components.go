package core

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"carob/internal/kinds/table"
)

// Components serves ComponentStatuses: the current results of checks; nothing is stored.
type Components struct {
	checks map[string]func() error
	*table.Convertor
}

var (
	_ rest.Lister               = (*Components)(nil)
	_ rest.Getter               = (*Components)(nil)
	_ rest.Scoper               = (*Components)(nil)
	_ rest.ShortNamesProvider   = (*Components)(nil)
	_ rest.SingularNameProvider = (*Components)(nil)
)

// NewComponents returns the storage of component statuses. A check returns the problem of its
// component.
func NewComponents(checks map[string]func() error) *Components {
	return &Components{checks: checks, Convertor: table.NewConvertor(table.Kind{
		Columns: []table.Column{table.NameColumn, {Name: "Status", Description: "Status of the component conditions"},
			{Name: "Message", Description: "Message of the component conditions"},
			{Name: "Error", Description: "Error of the component conditions"}},
		Row: func(o runtime.Object, _ time.Time) []any {
			c := o.(*corev1.ComponentStatus)
			for _, cond := range c.Conditions {
				if cond.Type == corev1.ComponentHealthy {
					status := "Unhealthy"
					if cond.Status == corev1.ConditionTrue {
						status = "Healthy"
					}
					return []any{c.Name, status, cond.Message, cond.Error}
				}
			}
			return []any{c.Name, "Unknown", "", ""}
		}})}
}

// New implements rest.Storage.
func (c *Components) New() runtime.Object { return &corev1.ComponentStatus{} }

// NewList implements rest.Lister.
func (c *Components) NewList() runtime.Object { return &corev1.ComponentStatusList{} }

// Destroy implements rest.Storage.
func (c *Components) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (c *Components) NamespaceScoped() bool { return false }

// ShortNames implements rest.ShortNamesProvider.
func (c *Components) ShortNames() []string { return []string{"cs"} }

// GetSingularName implements rest.SingularNameProvider.
func (c *Components) GetSingularName() string { return "componentstatus" }

// Get implements rest.Getter.
func (c *Components) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	check, ok := c.checks[name]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("componentstatuses"), name)
	}
	return status(name, check), nil
}

// List implements rest.Lister.
func (c *Components) List(_ context.Context, opts *internalversion.ListOptions) (runtime.Object, error) {
	out := &corev1.ComponentStatusList{}
	names := make([]string, 0, len(c.checks))
	for name := range c.checks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if opts != nil && opts.FieldSelector != nil && !opts.FieldSelector.Matches(fields.Set{"metadata.name": name}) {
			continue
		}
		if opts != nil && opts.LabelSelector != nil && !opts.LabelSelector.Empty() {
			continue // components have no labels
		}
		out.Items = append(out.Items, *status(name, c.checks[name]))
	}
	return out, nil
}

func status(name string, check func() error) *corev1.ComponentStatus {
	cond := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := check(); err != nil {
		cond.Status, cond.Message, cond.Error = corev1.ConditionFalse, err.Error(), "unhealthy"
	}
	return &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name},
		Conditions: []corev1.ComponentCondition{cond}}
}
