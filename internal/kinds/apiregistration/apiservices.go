package apiregistration

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/validation"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// GroupResource is the group resource of APIService.
var GroupResource = schema.GroupResource{Group: apiregistrationv1.GroupName, Resource: "apiservices"}

// Kind describes the kind APIService. written is called after each change, before the client gets
// the response, with the object and whether it exists; requests at the same time may call it in another order than they
// changed the object.
func Kind(written func(s *apiregistrationv1.APIService, exists bool)) *registry.Resource {
	r := registry.Of[apiregistrationv1.APIService, apiregistrationv1.APIServiceList](registry.Resource{
		Kind: apiregistrationv1.SchemeGroupVersion.WithKind("APIService"), Plural: GroupResource.Resource,
		Cluster: true, Status: true, NoGeneration: true,
		RequireResourceVersion: true, Categories: []string{"api-extensions"}, Table: apiServiceTable,
		ValidateName: func(name string, _ bool) []string { return content.IsPathSegmentName(name) },
		PrepareCreate: func(_ context.Context, o runtime.Object) {
			if s := o.(*apiregistrationv1.APIService); s.Spec.Service == nil {
				s.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available,
					Status:             apiregistrationv1.ConditionTrue,
					LastTransitionTime: metav1.Now(), Reason: "Local",
					Message: "Local APIServices are always available"}}
			}
		},
		Validator: registry.Validator{
			Create: func(ctx context.Context, o runtime.Object) field.ErrorList {
				return internal(o,
					func(s *apiregistration.APIService) field.ErrorList {
						return validation.ValidateAPIService(ctx, s)
					})
			},
			Update: func(ctx context.Context, o, _ runtime.Object) field.ErrorList {
				return internal(o,
					func(s *apiregistration.APIService) field.ErrorList {
						return validation.ValidateAPIService(ctx, s)
					})
			},
			StatusUpdate: func(_ context.Context, o, _ runtime.Object) field.ErrorList {
				return internal(o, func(s *apiregistration.APIService) field.ErrorList {
					return validation.ValidateAPIServiceStatus(&s.Status, field.NewPath("status"))
				})
			},
		},
	})
	if written != nil {
		r.Customize = func(s *genericregistry.Store, _ *registry.Strategy) {
			s.AfterCreate = func(o runtime.Object, _ *metav1.CreateOptions) { notify(written, o, true) }
			s.AfterUpdate = func(o runtime.Object, _ *metav1.UpdateOptions) { notify(written, o, true) }
			s.AfterDelete = func(o runtime.Object, _ *metav1.DeleteOptions) { notify(written, o, false) }
		}
	}
	return r
}

func notify(written func(*apiregistrationv1.APIService, bool), o runtime.Object, exists bool) {
	if s, ok := o.(*apiregistrationv1.APIService); ok {
		written(s, exists)
	}
}

// internal validates with the library, whose functions take its internal type.
func internal(o runtime.Object, check func(*apiregistration.APIService) field.ErrorList) field.ErrorList {
	var s apiregistration.APIService
	if err := apiregistrationv1.Convert_v1_APIService_To_apiregistration_APIService(
		o.(*apiregistrationv1.APIService).DeepCopy(), &s, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("convert: %w", err))}
	}
	return check(&s)
}

var apiServiceTable = table.Kind{
	Columns: []table.Column{table.NameColumn,
		{Name: "Service", Description: "The reference to the service that hosts this API endpoint."},
		{Name: "Available", Description: "Whether this service is available."}, table.AgeColumn},
	Row: func(o runtime.Object, now time.Time) []any {
		s := o.(*apiregistrationv1.APIService)
		where := "Local"
		if r := s.Spec.Service; r != nil {
			where = r.Namespace + "/" + r.Name
		}
		available := string(apiregistrationv1.ConditionUnknown)
		if c := Condition(s); c != nil {
			available = string(c.Status)
			if c.Status != apiregistrationv1.ConditionTrue {
				available += " (" + c.Reason + ")"
			}
		}
		return []any{s.Name, where, available, table.Age(s.CreationTimestamp, now)}
	},
}

// Condition returns the condition Available, nil if there is none.
func Condition(s *apiregistrationv1.APIService) *apiregistrationv1.APIServiceCondition {
	for i := range s.Status.Conditions {
		if s.Status.Conditions[i].Type == apiregistrationv1.Available {
			return &s.Status.Conditions[i]
		}
	}
	return nil
}
