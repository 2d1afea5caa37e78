// Package app composes carob: it creates the parts from the settings of one instance, starts them
// in order, and stops them in reverse. Parts meet only here; nothing in this package decides about
// pods.
//
// Contract: docs/spec/pod-lifecycle.md.
package app

import (
	"strings"

	"k8s.io/component-base/version"
)

// App is the product, for the command line.
type App struct{ version string }

// New returns the product with the version of this build.
func New(version string) *App { return &App{version} }

// libraries is the Kubernetes release of carob's libraries. The linker sets the same value in
// component-base; a plain `go build` does not.
const libraries = "v1.37.2"

// KubernetesVersion is the release whose API carob serves.
func KubernetesVersion() string {
	if v := version.Get().GitVersion; strings.HasPrefix(v, "v1.") {
		return v
	}
	return libraries
}
