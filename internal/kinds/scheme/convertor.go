package scheme

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// SharingConvertor converts between versions as runtime.UnsafeObjectConvertor does: what it returns may share memory
// with its argument. But it leaves the argument as it is. The unsafe convertor sets the kind of the argument where both
// versions have the same Go type, as hubs here have; the caller's object would then differ from an equal one that was
// not converted.
func SharingConvertor(s *runtime.Scheme) runtime.ObjectConvertor {
	return sharing{runtime.UnsafeObjectConvertor(s)}
}

type sharing struct{ runtime.ObjectConvertor }

// ConvertToVersion implements runtime.ObjectConvertor.
func (c sharing) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	if v := reflect.ValueOf(in); v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Struct {
		same := reflect.New(v.Elem().Type())
		same.Elem().Set(v.Elem())
		in = same.Interface().(runtime.Object)
	}
	return c.ObjectConvertor.ConvertToVersion(in, target)
}
