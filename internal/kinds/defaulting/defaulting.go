package defaulting

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

// Add registers fn for *T. A scheme keeps one function per type, keyed by the pointer's type.
func Add[T any](s *runtime.Scheme, fn func(*T)) {
	var zero any = new(T)
	s.AddTypeDefaultingFunc(zero.(runtime.Object), func(o any) { fn(o.(*T)) })
}

// OrDefault sets *p to v if it has its zero value.
func OrDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// OrNew sets *p to a pointer to v if it is nil.
func OrNew[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// RoundUp rounds quantities to 1/1000, the finest resolution in a resource list.
func RoundUp(l corev1.ResourceList) {
	for name, q := range l {
		if q.RoundUp(resource.Milli) {
			continue
		}
		l[name] = q
	}
}
