package resources

import (
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func invalidReplicas(n int32) field.ErrorList {
	return validation.ValidateNonnegativeField(int64(n), field.NewPath("spec", "replicas"))
}
