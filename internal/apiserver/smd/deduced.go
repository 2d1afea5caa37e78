package smd

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

func newConverter(*runtime.Scheme) managedfields.TypeConverter {
	return managedfields.NewDeducedTypeConverter()
}
