package inventory

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// seen is called for existing and for new objects of the kinds, but not for other objects or for deletions.
func TestNotify(t *testing.T) {
	seen := 0
	xs, ys := schema.GroupResource{Group: "a", Resource: "xs"}, schema.GroupResource{Resource: "ys"}
	r := Notify(func() { seen++ }, xs, ys)
	kind := func(group, resource string) Kind {
		return Kind{GroupVersionResource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}}
	}
	one := []*metav1.PartialObjectMetadata{{}}
	r.Changed(kind("b", "xs"), one[0])
	r.Relisted(kind("", "xs"), one)
	r.Relisted(kind("a", "xs"), nil)
	r.Gone(kind("a", "xs"), one[0])
	r.Kinds()
	if seen != 0 {
		t.Fatalf("seen %d times without an object of the kinds", seen)
	}
	r.Relisted(kind("a", "xs"), one)
	r.Changed(kind("", "ys"), one[0])
	if seen != 2 {
		t.Errorf("seen %d times, want 2", seen)
	}
}
