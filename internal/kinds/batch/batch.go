package batch

import (
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/registry"
)

func batch(kind string) schema.GroupVersionKind { return batchv1.SchemeGroupVersion.WithKind(kind) }

// Kinds returns the kinds of batch.
func Kinds() []*registry.Resource { return []*registry.Resource{jobs(), cronJobs()} }
