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

// OrDefault sets *p to v when it holds its zero value.
func OrDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// OrNew sets *p to a pointer to v when it is nil.
func OrNew[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// RoundUp keeps quantities at a resolution of 1/1000, the finest a resource list may hold.
func RoundUp(l corev1.ResourceList) {
	for name, q := range l {
		if q.RoundUp(resource.Milli) {
			continue
		}
		l[name] = q
	}
}
