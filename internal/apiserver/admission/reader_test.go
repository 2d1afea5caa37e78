package admission

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// ranges is the storage of limit ranges: one in each namespace, named by how often it was listed.
type ranges struct {
	rest.TableConvertor
	lists    int
	versions []string // resource versions of the requests
}

func (r *ranges) New() runtime.Object     { return &corev1.LimitRange{} }
func (r *ranges) NewList() runtime.Object { return &corev1.LimitRangeList{} }
func (r *ranges) Destroy()                {}
func (r *ranges) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	r.lists++
	r.versions = append(r.versions, o.ResourceVersion)
	name := fmt.Sprint(genericapirequest.NamespaceValue(ctx), r.lists)
	return &corev1.LimitRangeList{Items: []corev1.LimitRange{{ObjectMeta: metav1.ObjectMeta{Name: name}}}}, nil
}

func TestListsOfSettingsAreKeptUntilAWrite(t *testing.T) {
	st, writes, known := &ranges{}, uint64(7), true
	r := NewReader(func(schema.GroupResource) rest.Storage { return st },
		func(schema.GroupResource) (uint64, bool) { return writes, known })
	for i, step := range []struct {
		do        func()
		resource  schema.GroupResource
		namespace string
		want      string
	}{
		{nil, limitRanges, "a", "a1"},
		{nil, limitRanges, "a", "a1"},
		{nil, limitRanges, "b", "b2"},
		{nil, limitRanges, "a", "a1"},
		{func() { writes++ }, limitRanges, "a", "a3"},
		{nil, limitRanges, "b", "b4"},
		{nil, limitRanges, "b", "b4"},
		{func() { known = false }, limitRanges, "b", "b5"},
		{nil, limitRanges, "b", "b6"},
		{func() { known = true }, limitRanges, "b", "b4"},
		{nil, podResource, "b", "b7"},
		{nil, podResource, "b", "b8"},
	} {
		if step.do != nil {
			step.do()
		}
		var got string
		if err := r.List(t.Context(), step.resource, step.namespace, func(o runtime.Object) bool {
			got = o.(*corev1.LimitRange).Name
			return true
		}); err != nil || got != step.want {
			t.Errorf("step %d: %s, %v, want %s", i, got, err, step.want)
		}
	}
	// A cached list must not come from the watch cache, which may lack the last write.
	if want := []string{"", "", "", "", fromCache, fromCache, fromCache,
		fromCache}; fmt.Sprint(st.versions) != fmt.Sprint(want) {
		t.Errorf("requested %q", st.versions)
	}
}
