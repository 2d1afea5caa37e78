package podstatus

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Changes of a field that Equal does not compare would never be published.
func TestEqualComparesEveryField(t *testing.T) {
	differs := func(of reflect.Type, put func(value reflect.Value) *corev1.PodStatus) {
		for i := range of.NumField() {
			v := reflect.New(of).Elem()
			fill(v.Field(i))
			if with, without := put(v), put(reflect.Zero(of)); Equal(with, without) || !Equal(with, with) ||
				!Equal(with, with.DeepCopy()) {
				t.Errorf("%s.%s", of.Name(), of.Field(i).Name)
			}
		}
	}
	differs(reflect.TypeFor[corev1.PodStatus](),
		func(v reflect.Value) *corev1.PodStatus { return new(v.Interface().(corev1.PodStatus)) })
	differs(reflect.TypeFor[corev1.PodCondition](), func(v reflect.Value) *corev1.PodStatus {
		return &corev1.PodStatus{Conditions: []corev1.PodCondition{v.Interface().(corev1.PodCondition)}}
	})
	differs(reflect.TypeFor[corev1.ContainerStatus](), func(v reflect.Value) *corev1.PodStatus {
		return &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{v.Interface().(corev1.ContainerStatus)}}
	})
}

// fill sets every field of a value to a non-zero value.
func fill(v reflect.Value) {
	if v.Type() == reflect.TypeFor[metav1.Time]() {
		v.Set(reflect.ValueOf(metav1.NewTime(time.Unix(1, 0))))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key := reflect.New(v.Type().Key()).Elem()
		fill(key)
		v.SetMapIndex(key, reflect.Zero(v.Type().Elem()))
	case reflect.Struct:
		fill(v.Field(0))
	default:
		panic(v.Kind().String())
	}
}
