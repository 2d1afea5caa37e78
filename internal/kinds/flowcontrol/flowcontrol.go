package flowcontrol

import (
	"context"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

const (
	schemas = "flowschemas"
	levels  = "prioritylevelconfigurations"
)

// Kinds describes the kinds of flowcontrol.apiserver.k8s.io/v1. deleted is called after an object was deleted.
func Kinds(deleted func()) []*registry.Resource {
	kind := flowcontrolv1.SchemeGroupVersion.WithKind
	out := []*registry.Resource{
		registry.Of[flowcontrolv1.FlowSchema, flowcontrolv1.FlowSchemaList](registry.Resource{
			Kind: kind("FlowSchema"), Plural: schemas, Cluster: true, Status: true, Table: schemaTable,
			Validator: registry.Validator{
				Create: func(_ context.Context, o runtime.Object) field.ErrorList {
					return flowSchema(o.(*flowcontrolv1.FlowSchema))
				},
				Update: func(_ context.Context, o, _ runtime.Object) field.ErrorList {
					return flowSchema(o.(*flowcontrolv1.FlowSchema))
				},
				StatusUpdate: func(_ context.Context, o, _ runtime.Object) field.ErrorList {
					return schemaStatus(&o.(*flowcontrolv1.FlowSchema).Status)
				},
			}}),
		registry.Of[flowcontrolv1.PriorityLevelConfiguration,
			flowcontrolv1.PriorityLevelConfigurationList](registry.Resource{
			Kind: kind("PriorityLevelConfiguration"), Plural: levels, Cluster: true, Status: true, Table: levelTable,
			Validator: registry.Validator{
				Create: func(_ context.Context, o runtime.Object) field.ErrorList {
					return priorityLevel(o.(*flowcontrolv1.PriorityLevelConfiguration), false)
				},
				Update: func(_ context.Context, o, old runtime.Object) field.ErrorList {
					l, was := o.(*flowcontrolv1.PriorityLevelConfiguration),
						old.(*flowcontrolv1.PriorityLevelConfiguration)
					return priorityLevel(l, equality.Semantic.DeepEqual(l.Spec, was.Spec))
				},
				StatusUpdate: func(_ context.Context, o, _ runtime.Object) field.ErrorList {
					return levelStatus(&o.(*flowcontrolv1.PriorityLevelConfiguration).Status)
				},
			}}),
	}
	for _, r := range out {
		r.Customize = func(s *genericregistry.Store, _ *registry.Strategy) {
			s.AfterDelete = func(runtime.Object, *metav1.DeleteOptions) { deleted() }
		}
	}
	return out
}

// RegisterDefaults adds the defaulting of the kinds to s.
func RegisterDefaults(s *runtime.Scheme) error {
	s.AddTypeDefaultingFunc(&flowcontrolv1.FlowSchema{}, func(o any) {
		if spec := &o.(*flowcontrolv1.FlowSchema).Spec; spec.MatchingPrecedence == 0 {
			spec.MatchingPrecedence = 1000
		}
	})
	s.AddTypeDefaultingFunc(&flowcontrolv1.PriorityLevelConfiguration{}, func(o any) {
		spec := &o.(*flowcontrolv1.PriorityLevelConfiguration).Spec
		if e := spec.Exempt; e != nil {
			orNew(&e.NominalConcurrencyShares, 0)
			orNew(&e.LendablePercent, 0)
		}
		if l := spec.Limited; l != nil {
			orNew(&l.NominalConcurrencyShares, 30)
			orNew(&l.LendablePercent, 0)
			if q := l.LimitResponse.Queuing; q != nil {
				orDefault(&q.HandSize, 8)
				orDefault(&q.Queues, 64)
				orDefault(&q.QueueLengthLimit, 50)
			}
		}
	})
	return nil
}

func orNew(p **int32, v int32) {
	if *p == nil {
		*p = &v
	}
}

func orDefault(p *int32, v int32) {
	if *p == 0 {
		*p = v
	}
}

const none = "<none>"

var (
	schemaTable = table.Kind{
		Columns: []table.Column{table.NameColumn, {Name: "PriorityLevel"}, {Name: "MatchingPrecedence"},
			{Name: "DistinguisherMethod"}, table.AgeColumn,
			{Name: "MissingPL", Description: "references a broken or non-existent PriorityLevelConfiguration"}},
		Row: func(o runtime.Object, now time.Time) []any {
			f := o.(*flowcontrolv1.FlowSchema)
			method, dangling := none, "?"
			if f.Spec.DistinguisherMethod != nil {
				method = string(f.Spec.DistinguisherMethod.Type)
			}
			for _, c := range f.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
					dangling = string(c.Status)
				}
			}
			return []any{f.Name, f.Spec.PriorityLevelConfiguration.Name, int64(f.Spec.MatchingPrecedence), method,
				table.Age(f.CreationTimestamp, now), dangling}
		},
	}
	levelTable = table.Kind{
		Columns: []table.Column{table.NameColumn, {Name: "Type"}, {Name: "NominalConcurrencyShares"}, {Name: "Queues"},
			{Name: "HandSize"}, {Name: "QueueLengthLimit"}, table.AgeColumn},
		Row: func(o runtime.Object, now time.Time) []any {
			l := o.(*flowcontrolv1.PriorityLevelConfiguration)
			row := []any{l.Name, string(l.Spec.Type), none, none, none, none, table.Age(l.CreationTimestamp, now)}
			if l.Spec.Limited != nil {
				if n := l.Spec.Limited.NominalConcurrencyShares; n != nil {
					row[2] = *n
				}
				if q := l.Spec.Limited.LimitResponse.Queuing; q != nil {
					row[3], row[4], row[5] = q.Queues, q.HandSize, q.QueueLengthLimit
				}
			}
			return row
		},
	}
)

// uniqueConditions validates that the n conditions of a status have different types.
func uniqueConditions[T ~string](n int, typeOf func(int) T) field.ErrorList {
	var errs field.ErrorList
	seen := map[T]bool{}
	for i := range n {
		at, t := field.NewPath("status", "conditions").Index(i).Child("type"), typeOf(i)
		if seen[t] {
			errs = append(errs, field.Duplicate(at, t))
		}
		seen[t] = true
		if t == "" {
			errs = append(errs, field.Required(at, ""))
		}
	}
	return errs
}

func schemaStatus(s *flowcontrolv1.FlowSchemaStatus) field.ErrorList {
	return uniqueConditions(len(s.Conditions),
		func(i int) flowcontrolv1.FlowSchemaConditionType { return s.Conditions[i].Type })
}

func levelStatus(s *flowcontrolv1.PriorityLevelConfigurationStatus) field.ErrorList {
	return uniqueConditions(len(s.Conditions),
		func(i int) flowcontrolv1.PriorityLevelConfigurationConditionType { return s.Conditions[i].Type })
}
