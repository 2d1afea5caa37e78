// Package smd is the schema by which server-side apply and field ownership
// merge objects: lists with keys, sets, atomic parts. The schema is generated Go
// data, so that it costs nothing at start. The API server drives it; nothing
// here may depend on how kinds are served.
package smd

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// NewTypeConverter returns the converter of the external types in scheme.
func NewTypeConverter(scheme *runtime.Scheme) managedfields.TypeConverter {
	return managedfields.NewSchemeTypeConverter(scheme, &typed.Parser{Schema: schema.Schema{Types: types.Types}})
}
