package batch

import (
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/defaulting"
)

// RegisterDefaults adds the defaults of the kinds of this package to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, defaultJob)
	defaulting.Add(s, defaultCronJob)
}
