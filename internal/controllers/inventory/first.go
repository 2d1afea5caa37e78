package inventory

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// First returns a Reader that calls seen for each object of some kinds, whenever it is listed or changes. A controller
// that has nothing to do without such objects begins with the first one; seen must not mind to be called again.
func First(seen func(), kinds ...schema.GroupResource) Reader { return &first{seen, kinds} }

type first struct {
	seen  func()
	kinds []schema.GroupResource
}

// Changed implements Reader.
func (f *first) Changed(k Kind, _ *metav1.PartialObjectMetadata) {
	if slices.Contains(f.kinds, k.GroupResource()) {
		f.seen()
	}
}

// Gone implements Reader.
func (f *first) Gone(Kind, *metav1.PartialObjectMetadata) {}

// Relisted implements Reader.
func (f *first) Relisted(k Kind, objects []*metav1.PartialObjectMetadata) {
	for _, o := range objects {
		f.Changed(k, o)
	}
}

// Kinds implements Reader.
func (f *first) Kinds() {}
