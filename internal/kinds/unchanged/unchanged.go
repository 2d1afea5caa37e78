// Package unchanged finds unchanged parts of API objects, many times faster than a semantic or
// schema-based comparison. Code that compares two states of an object calls it first. It must never
// treat two values as equal that a client could distinguish.
package unchanged

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Values reports whether a and b point to equal values, including the difference between an empty
// and an absent list. Values for which it returns false may still be semantically equal: 1 and
// 1000m, or the same time in two time zones.
func Values[T any](a, b *T) bool {
	return a == b || a != nil && b != nil && Reflected(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
}

// Meaning reports whether a and b point to semantically equal values.
func Meaning[T any](a, b *T) bool { return Values(a, b) || equality.Semantic.DeepEqual(a, b) }

var quantityType = reflect.TypeFor[resource.Quantity]()

// Reflected is Values for two values of one type. API types have no cycles.
func Reflected(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.String:
		return a.String() == b.String()
	case reflect.Bool:
		return a.Bool() == b.Bool()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return a.Int() == b.Int()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return a.Uint() == b.Uint()
	case reflect.Float32, reflect.Float64:
		return a.Float() == b.Float()
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() || a.Pointer() == b.Pointer() {
			return a.Pointer() == b.Pointer()
		}
		return Reflected(a.Elem(), b.Elem())
	case reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() && b.IsNil()
		}
		a, b = a.Elem(), b.Elem()
		return a.Type() == b.Type() && Reflected(a, b)
	case reflect.Slice:
		return a.IsNil() == b.IsNil() && elements(a, b)
	case reflect.Array:
		return elements(a, b)
	case reflect.Map:
		return a.IsNil() == b.IsNil() && entries(a, b)
	case reflect.Struct:
		return fields(a, b)
	default:
		return false // a function or a channel: not in an API type
	}
}

func elements(a, b reflect.Value) bool {
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.Len() {
		if !Reflected(a.Index(i), b.Index(i)) {
			return false
		}
	}
	return true
}

func entries(a, b reflect.Value) bool {
	if a.Len() != b.Len() {
		return false
	}
	for it := a.MapRange(); it.Next(); {
		if v := b.MapIndex(it.Key()); !v.IsValid() || !Reflected(it.Value(), v) {
			return false
		}
	}
	return true
}

func fields(a, b reflect.Value) bool {
	t := a.Type()
	for i := range a.NumField() {
		// A quantity may cache its text, which is derived from the other fields.
		if t == quantityType && t.Field(i).Name == "s" {
			continue
		}
		if !Reflected(a.Field(i), b.Field(i)) {
			return false
		}
	}
	return true
}
