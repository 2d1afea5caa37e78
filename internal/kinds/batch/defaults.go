package batch

import (
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/defaulting"
)

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, defaultJob)
	defaulting.Add(s, defaultCronJob)
}
