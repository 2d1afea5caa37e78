// Package declarative validates objects by the rules that the API's Go types declare in their
// comments ("+k8s:required", "+k8s:maxItems=8"): Kubernetes' declarative validation. Upstream's
// generator writes the functions in the folders below (tools/cmd/validations). The strategies call
// it after the hand-written validation of the group's package. An error found by both is reported
// once, with the message of the declared rule, as upstream does.
package declarative

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"carob/internal/kinds/declarative/apps"
	"carob/internal/kinds/declarative/autoscaling"
	"carob/internal/kinds/declarative/batch"
	"carob/internal/kinds/declarative/certificates"
	"carob/internal/kinds/declarative/coordination"
	"carob/internal/kinds/declarative/core"
	"carob/internal/kinds/declarative/discovery"
	"carob/internal/kinds/declarative/networking"
	"carob/internal/kinds/declarative/node"
	"carob/internal/kinds/declarative/policy"
	"carob/internal/kinds/declarative/rbac"
	"carob/internal/kinds/declarative/resource"
	"carob/internal/kinds/declarative/scheduling"
	"carob/internal/kinds/declarative/storage"
	"carob/internal/kinds/declarative/storagemigration"
)

// Register adds the declared rules to s.
func Register(s *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{
		apps.RegisterValidations, autoscaling.RegisterValidations, batch.RegisterValidations,
		certificates.RegisterValidations, coordination.RegisterValidations,
		core.RegisterValidations, discovery.RegisterValidations, networking.RegisterValidations,
		node.RegisterValidations, policy.RegisterValidations,
		rbac.RegisterValidations, resource.RegisterValidations, scheduling.RegisterValidations,
		storage.RegisterValidations, storagemigration.RegisterValidations,
	} {
		if err := add(s); err != nil {
			return fmt.Errorf("register the declared rules: %w", err)
		}
	}
	return nil
}

// options are the feature gates that rules depend on, with their defaults in v1.37.
var options = map[string]bool{
	"DRAPartitionableDevicesType": false, "HPAScaleToZero": true, "InPlacePodVerticalScalingSchedulerPreemption": false,
	"WorkloadWithJob": false,
}

// Check returns the errors of the declared rules, and those of found, the errors of the
// hand-written validation, that the declared rules do not find. old is nil for a create;
// subresource is empty for the object itself.
func Check(ctx context.Context, s *runtime.Scheme, found field.ErrorList, obj, old runtime.Object,
	subresource string) field.ErrorList {
	var path []string
	if subresource != "" {
		path = []string{subresource}
	}
	var errs field.ErrorList
	if old == nil {
		errs = s.Validate(ctx, options, obj, path...)
	} else {
		errs = s.ValidateUpdate(ctx, options, obj, old, path...)
	}
	errs = validate.FilterEnforcedDeclarativeErrors(ctx, errs, true)
	declared := map[ground]bool{}
	for _, e := range errs {
		declared[groundOf(e)] = true
	}
	found = slices.DeleteFunc(found, func(f *field.Error) bool { return declared[groundOf(f)] })
	return append(found, errs...)
}

// ground is what a declared and a hand-written rule that find the same error, possibly with another message, have in
// common.
type ground struct {
	field  string
	kind   field.ErrorType
	change bool
}

func groundOf(e *field.Error) ground { return ground{e.Field, e.Type, isChange(e)} }

// isChange reports whether an error is about a change, not about the new value.
func isChange(e *field.Error) bool {
	return e.Origin == "immutable" || e.Origin == "update" || e.Detail == apivalidation.FieldImmutableErrorMsg
}

// Once is the part of a strategy that reports each error once: the library validates metadata twice
// on an update, and the strategies do it a third time.
type Once struct{}

// ValidateDeclaratively implements rest.DeclarativeValidationStrategy. Check calls the declared
// rules themselves.
func (Once) ValidateDeclaratively(_ context.Context, _, _ runtime.Object, found field.ErrorList, _ operation.Type,
	_ rest.DeclarativeValidationConfig) field.ErrorList {
	// An object may have a million errors: the time must not grow with their square.
	type text struct {
		kind          field.ErrorType
		field, detail string
		value         any // nil: one that may not be a key
	}
	seen := map[text][]any{}
	var all field.ErrorList
	for _, f := range found {
		t := text{kind: f.Type, field: f.Field, detail: f.Detail}
		if k := reflect.ValueOf(f.BadValue).Kind(); k == reflect.String || k >= reflect.Bool && k <= reflect.Float64 {
			t.value = f.BadValue
		}
		others, known := seen[t]
		if known && (t.value != nil ||
			slices.ContainsFunc(others, func(o any) bool { return reflect.DeepEqual(o, f.BadValue) })) {
			continue
		}
		if all = append(all, f); len(others) < mostCompared {
			seen[t] = append(others, f.BadValue)
		}
	}
	return all
}

// mostCompared is how many values of errors with the same text are compared with others.
const mostCompared = 100

// DeclarativeValidationConfig implements rest.DeclarativeValidationStrategy.
func (Once) DeclarativeValidationConfig(context.Context, runtime.Object,
	runtime.Object) rest.DeclarativeValidationConfig {
	return rest.DeclarativeValidationConfig{}
}
