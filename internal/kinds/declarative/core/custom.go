package core

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateCustom_EvictionResponder_Name reserves Kubernetes' domains for its own responders.
func ValidateCustom_EvictionResponder_Name(_ context.Context, _ operation.Operation, at *field.Path, value,
	_ *string) field.ErrorList {
	if value == nil {
		return nil
	}
	domain, _, _ := strings.Cut(*value, "/")
	domain = strings.TrimRight(strings.ToLower(strings.TrimSpace(domain)), ".")
	for _, reserved := range []string{"k8s.io", "kubernetes.io"} {
		if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
			return field.ErrorList{field.Invalid(at, *value, fmt.Sprintf("domain names *.%s are reserved", reserved))}
		}
	}
	return nil
}

// ValidateCustom_EvictionResponder_Priority reserves the lowest priorities for responders of
// Kubernetes.
func ValidateCustom_EvictionResponder_Priority(_ context.Context, _ operation.Operation, at *field.Path, value,
	_ *int32) field.ErrorList {
	const reserved = 1000
	if value != nil && *value >= 0 && *value < reserved {
		return field.ErrorList{field.Invalid(at, *value,
			"priorities 0-999 are reserved for responders with *.k8s.io suffix")}
	}
	return nil
}
