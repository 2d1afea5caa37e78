package crds

import (
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// known is an informer with the content of its index.
type known struct {
	informers.CustomResourceDefinitionInformer
	cache.Indexer
}

func (k known) Lister() listers.CustomResourceDefinitionLister {
	return listers.NewCustomResourceDefinitionLister(k.Indexer)
}

// The library waits until a definition has been established for two seconds, by the time of its
// condition. It gets one that was, from the start; others get the true time.
func TestEstablishedLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		now := metav1.Now()
		young := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "gadgets.example.org"}}
		young.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.NamesAccepted, LastTransitionTime: now},
			{Type: apiextensionsv1.Established, LastTransitionTime: now},
		}
		if err := index.Add(young); err != nil {
			t.Fatal(err)
		}
		for _, age := range []time.Duration{0, time.Second, time.Hour} {
			time.Sleep(age)
			shown, err := establishedInformer{known{Indexer: index}}.Lister().Get("gadgets.example.org")
			if err != nil {
				t.Fatal(err)
			}
			established := shown.Status.Conditions[1].LastTransitionTime
			if time.Since(established.Time) < establishDelay {
				t.Errorf("the library would wait: %v after it was established it is shown as established %v ago", age,
					time.Since(established.Time))
			}
			if shown.Status.Conditions[0].LastTransitionTime != now ||
				!young.Status.Conditions[1].LastTransitionTime.Equal(&now) {
				t.Error("something else is changed, or the informer's own object")
			}
			if age == time.Hour && shown != young {
				t.Error("a definition that is old enough is copied")
			}
		}
		if _, err := (establishedInformer{known{Indexer: index}}).Lister().Get("others.example.org"); err == nil {
			t.Error("one that is not there is shown")
		}
	})
}
