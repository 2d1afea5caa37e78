package apiserver

import (
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/compatibility"
)

// versioned is the effective version, with a fallback for builds in which the linker did not set
// the library's version variables: they then contain a template that no client can parse.
type versioned struct{ compatibility.EffectiveVersion }

func (v versioned) Info() *apimachineryversion.Info {
	i := v.EffectiveVersion.Info()
	if _, err := utilversion.ParseSemantic(i.GitVersion); err != nil || strings.Contains(i.GitVersion, "$Format") {
		i.GitVersion, i.GitCommit, i.GitTreeState = defaultVersion, "unknown", "clean"
	}
	return i
}
