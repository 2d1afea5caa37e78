package rules

import (
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DescendingPath validates a path that must stay inside its volume.
func DescendingPath(p string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if path.IsAbs(p) {
		errs = append(errs, field.Invalid(at, p, "must be a relative path"))
	}
	return append(errs, NoBacksteps(p, at)...)
}

// NoBacksteps rejects a path with an element "..".
func NoBacksteps(p string, at *field.Path) field.ErrorList {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return field.ErrorList{field.Invalid(at, p, "must not contain '..'")}
		}
	}
	return nil
}
