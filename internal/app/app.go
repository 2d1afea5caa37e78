// Package app composes carob: it turns the settings of one instance into parts,
// starts them in order and stops them in reverse. Only here parts meet; nothing
// in it decides about pods.
package app

import (
	"strings"

	"k8s.io/component-base/version"
)

// App is the product as the command line drives it.
type App struct{ version string }

// New names the build.
func New(version string) *App { return &App{version} }

// libraries is the Kubernetes release that carob's libraries are of. The linker
// puts the same into component-base; a plain `go build` does not.
const libraries = "v1.37.2"

// KubernetesVersion is the release whose API carob serves.
func KubernetesVersion() string {
	if v := version.Get().GitVersion; strings.HasPrefix(v, "v1.") {
		return v
	}
	return libraries
}
