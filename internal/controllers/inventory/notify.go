package inventory

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Notify returns a Reader that calls seen for each object of some kinds whenever it is listed or changes.
// Controllers that are idle without these objects start with the first call and ignore the others.
func Notify(seen func(), kinds ...schema.GroupResource) Reader { return &notifier{seen, kinds} }

type notifier struct {
	seen  func()
	kinds []schema.GroupResource
}

// Changed implements Reader.
func (n *notifier) Changed(k Kind, _ *metav1.PartialObjectMetadata) {
	if slices.Contains(n.kinds, k.GroupResource()) {
		n.seen()
	}
}

// Gone implements Reader.
func (n *notifier) Gone(Kind, *metav1.PartialObjectMetadata) {}

// Relisted implements Reader.
func (n *notifier) Relisted(k Kind, objects []*metav1.PartialObjectMetadata) {
	for _, o := range objects {
		n.Changed(k, o)
	}
}

// Kinds implements Reader.
func (n *notifier) Kinds() {}
