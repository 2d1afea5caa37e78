package unchanged

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// fill sets every field, with one element in lists and maps, down to a depth.
func fill(v reflect.Value, depth int) {
	if !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("s")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(3)
	case reflect.Pointer:
		if depth > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), depth-1)
		}
	case reflect.Slice:
		if depth > 0 && v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), depth-1)
		}
	case reflect.Map:
		if depth > 0 && v.Type().Elem().Kind() != reflect.Slice {
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, depth-1)
			fill(elem, depth-1)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, elem)
		}
	case reflect.Struct:
		if v.Type() == quantityType {
			v.Set(reflect.ValueOf(resource.MustParse("1500m")))
			return
		}
		for _, f := range v.Fields() {
			fill(f, depth-1)
		}
	default:
	}
}

func filled(depth int) *corev1.Pod {
	p := &corev1.Pod{}
	fill(reflect.ValueOf(p).Elem(), depth)
	return p
}

// A copy is equal, and a change of any single field is found.
func TestEachFieldIsCompared(t *testing.T) {
	a := filled(14)
	b := a.DeepCopy()
	_ = a.Spec.Overhead.Cpu().String() // caches its text
	if !Values(a, b) {
		t.Fatal("a copy differs")
	}
	changed := 0
	change(reflect.ValueOf(b).Elem(), func(path string) {
		changed++
		if Values(a, b) {
			t.Errorf("a change of %s was not found", path)
		}
	}, "")
	if changed < 1000 {
		t.Errorf("%d fields changed", changed)
	}
	if !Values(a, b) {
		t.Fatal("the changes were not undone")
	}
}

// change changes each scalar, one after the other, and makes each list and map absent.
func change(v reflect.Value, visit func(path string), path string) {
	if !v.CanSet() {
		return
	}
	with := func(other reflect.Value) {
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		v.Set(other)
		visit(path)
		v.Set(old)
	}
	switch v.Kind() {
	case reflect.String:
		with(reflect.ValueOf(v.String() + "x").Convert(v.Type()))
	case reflect.Bool:
		with(reflect.ValueOf(!v.Bool()).Convert(v.Type()))
	case reflect.Int, reflect.Int32, reflect.Int64:
		with(reflect.ValueOf(v.Int() + 1).Convert(v.Type()))
	case reflect.Pointer:
		if v.IsNil() {
			with(reflect.New(v.Type().Elem()))
			return
		}
		with(reflect.Zero(v.Type()))
		change(v.Elem(), visit, path)
	case reflect.Slice:
		if v.IsNil() {
			with(reflect.MakeSlice(v.Type(), 0, 0))
			return
		}
		with(reflect.Zero(v.Type()))
		for i := range v.Len() {
			change(v.Index(i), visit, path+"[]")
		}
	case reflect.Map:
		if v.IsNil() {
			with(reflect.MakeMap(v.Type()))
			return
		}
		with(reflect.Zero(v.Type()))
	case reflect.Struct:
		for i := range v.NumField() {
			change(v.Field(i), visit, path+"."+v.Type().Field(i).Name)
		}
	default:
	}
}

func TestValues(t *testing.T) {
	one, milli := resource.MustParse("1"), resource.MustParse("1000m")
	binary := resource.MustParse("1Ki")
	if !Values(&one, new(resource.MustParse("1"))) || Values(&binary, new(resource.MustParse("1024"))) {
		t.Error("quantities")
	}
	if Values(&corev1.ResourceList{"cpu": one}, &corev1.ResourceList{"memory": one}) ||
		Values(&corev1.ResourceList{"cpu": one}, &corev1.ResourceList{}) {
		t.Error("maps")
	}
	if Values(&rbacv1.Role{}, &rbacv1.Role{Rules: []rbacv1.PolicyRule{}}) {
		t.Error("an empty list is shown as one, an absent one is null")
	}
	if Values[int](nil, new(int)) || !Values[int](nil, nil) {
		t.Error("nothing")
	}
	if !Meaning(&one, &milli) || !Meaning(&rbacv1.Role{}, &rbacv1.Role{Rules: []rbacv1.PolicyRule{}}) ||
		Meaning(&one, &binary) {
		t.Error("meaning")
	}
}

func BenchmarkValues(b *testing.B) {
	p := filled(7)
	o := p.DeepCopy()
	b.Run("same", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !Values(&p.Spec, &o.Spec) {
				b.Fatal("a copy differs")
			}
		}
	})
	b.Run("by meaning", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !apiequality.Semantic.DeepEqual(&p.Spec, &o.Spec) {
				b.Fatal("a copy differs")
			}
		}
	})
}
