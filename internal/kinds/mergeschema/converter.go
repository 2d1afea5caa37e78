// Package mergeschema is the schema by which server-side apply and field ownership merge objects:
// lists with keys, sets, atomic parts. The schema is generated Go data, so it adds no start-up
// time. The API server uses it; this package must not depend on how kinds are served.
package mergeschema

import (
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"carob/internal/kinds/unchanged"
)

// NewTypeConverter returns the converter of the external types in scheme.
func NewTypeConverter(scheme *runtime.Scheme) managedfields.TypeConverter {
	parser := &typed.Parser{Schema: smdschema.Schema{Types: types.Types}}
	return &converter{TypeConverter: managedfields.NewSchemeTypeConverter(scheme, parser), scheme: scheme,
		parser: parser}
}

// converter is the library's converter without its validation of objects against the schema. An
// object of a Go type always fits, because the schema is generated from these types; the exception,
// list items without their keys, is found when objects are compared or merged. So only objects that
// a client sent as a patch or apply configuration are validated.
type converter struct {
	managedfields.TypeConverter
	scheme *runtime.Scheme
	parser *typed.Parser
	kinds  sync.Map // schema.GroupVersionKind → typed.ParseableType
}

// ObjectToTyped implements managedfields.TypeConverter.
func (c *converter) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if _, ok := obj.(*unstructured.Unstructured); ok || !slices.Contains(opts, typed.AllowDuplicates) {
		return c.TypeConverter.ObjectToTyped(obj, opts...)
	}
	t, err := c.kind(obj.GetObjectKind().GroupVersionKind())
	if err != nil {
		return nil, err
	}
	v, err := value.NewValueReflect(obj)
	if err != nil {
		return nil, err
	}
	//nolint:staticcheck // deprecated because validation be cheap: here it was a third of what ownership cost
	return typed.AsTypedUnvalidated(object{v, reflect.ValueOf(obj).Elem()}, t.Schema, t.TypeRef), nil
}

func (c *converter) kind(gvk schema.GroupVersionKind) (typed.ParseableType, error) {
	if t, ok := c.kinds.Load(gvk); ok {
		return t.(typed.ParseableType), nil
	}
	name, err := c.scheme.ToOpenAPIDefinitionName(gvk)
	if err != nil {
		return typed.ParseableType{}, err
	}
	t := c.parser.Type(name)
	c.kinds.Store(gvk, t)
	return t, nil
}

// object is a whole API object as a value. When two of a kind are compared, equal parts are
// skipped: their ownership did not change. Most writes leave the whole spec or status unchanged.
type object struct {
	value.Value
	of reflect.Value // the struct
}

// AsMap implements value.Value.
func (o object) AsMap() value.Map { return parts{o.Value.AsMap(), o.of} }

// AsMapUsing implements value.Value.
func (o object) AsMapUsing(a value.Allocator) value.Map {
	return parts{o.Value.AsMapUsing(a), o.of}
}

// parts are the fields of an object.
type parts struct {
	value.Map
	of reflect.Value
}

// Zip implements value.Map.
func (p parts) Zip(other value.Map, order value.MapTraverseOrder, fn func(key string, lhs, rhs value.Value) bool) bool {
	return p.ZipUsing(value.HeapAllocator, other, order, fn)
}

// ZipUsing implements value.Map.
func (p parts) ZipUsing(a value.Allocator, other value.Map, order value.MapTraverseOrder,
	fn func(key string, lhs, rhs value.Value) bool) bool {
	o, ok := other.(parts)
	if !ok {
		return p.Map.ZipUsing(a, other, order, fn)
	}
	if p.of.Type() != o.of.Type() {
		return p.Map.ZipUsing(a, o.Map, order, fn)
	}
	fields := value.TypeReflectEntryOf(p.of.Type()).Fields()
	return p.Map.ZipUsing(a, o.Map, order, func(key string, lhs, rhs value.Value) bool {
		if lhs != nil && rhs != nil {
			if f := fields[key]; unchanged.Reflected(f.GetFrom(p.of), f.GetFrom(o.of)) {
				return true
			}
		}
		return fn(key, lhs, rhs)
	})
}
