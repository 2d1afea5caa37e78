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

// establishDelay is how long the library waits.
const establishDelay = 2 * time.Second

// establishedInformer shows the library's handler definitions that were established long ago.
type establishedInformer struct {
	informers.CustomResourceDefinitionInformer
}

// Lister implements informers.CustomResourceDefinitionInformer.
func (p establishedInformer) Lister() listers.CustomResourceDefinitionLister {
	return establishedLister{p.CustomResourceDefinitionInformer.Lister()}
}

type establishedLister struct {
	listers.CustomResourceDefinitionLister
}

// Get returns the definition; the time of its condition Established is at least establishDelay ago.
func (l establishedLister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	d, err := l.CustomResourceDefinitionLister.Get(name)
	if err != nil {
		return nil, err
	}
	limit := time.Now().Add(-establishDelay)
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
