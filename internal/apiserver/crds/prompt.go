package crds

import (
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The library delays each write of a custom resource for two seconds while its definition is
// younger than that, so that other API servers learn of it. There is one API server here: the
// library gets definitions that were established long ago.

// settling is how long the library waits.
const settling = 2 * time.Second

// prompt is the informer of definitions that the library's handler uses.
type prompt struct {
	informers.CustomResourceDefinitionInformer
}

// Lister implements informers.CustomResourceDefinitionInformer.
func (p prompt) Lister() listers.CustomResourceDefinitionLister {
	return lister{p.CustomResourceDefinitionInformer.Lister()}
}

type lister struct {
	listers.CustomResourceDefinitionLister
}

// Get returns the definition; the time of its condition Established is at least settling ago.
func (l lister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	d, err := l.CustomResourceDefinitionLister.Get(name)
	if err != nil {
		return nil, err
	}
	limit := time.Now().Add(-settling)
	i := slices.IndexFunc(d.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.LastTransitionTime.After(limit)
	})
	if i < 0 {
		return d, nil
	}
	shown := *d // the informer's own object must not change
	shown.Status.Conditions = slices.Clone(d.Status.Conditions)
	shown.Status.Conditions[i].LastTransitionTime = metav1.NewTime(limit)
	return &shown, nil
}
