package namespace

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/tools/cache"

	"carob/internal/controllers/controllertest"
)

// The watch still shows a namespace that is gone: a new one of its name keeps its content, and the deletion of the
// same one goes on.
func TestContentOfANewNamespaceStays(t *testing.T) {
	namespace := func(uid types.UID, ends bool) *corev1.Namespace {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "again", UID: uid},
			Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}}}
		if ends {
			n.DeletionTimestamp = new(metav1.Now())
		}
		return n
	}
	finalized := namespace("old", true)
	finalized.Spec.Finalizers = nil
	for name, test := range map[string]struct {
		stored  *corev1.Namespace
		deletes bool
	}{"the same": {namespace("old", true), true}, "another": {namespace("new", false), false}, "none": {nil, false},
		"finalized": {finalized, false}, "another that ends": {namespace("new", true), true}} {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			if test.stored != nil {
				objects = append(objects, test.stored)
			}
			client := fake.NewClientset(objects...)
			client.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
				{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: metav1.Verbs{"list", "delete"}}}}}
			scheme := metadatafake.NewTestScheme()
			if err := metav1.AddMetaToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			content := metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "again", Name: "precious"}})
			shown := cache.NewStore(cache.MetaNamespaceKeyFunc)
			if err := shown.Add(namespace("old", true)); err != nil {
				t.Fatal(err)
			}
			c := &Controller{client: client, discovery: client.Discovery(), objects: content, namespaces: shown}
			if _, err := c.reconcile(t.Context(), "again"); err != nil {
				t.Fatal(err)
			}
			var deleted []string
			for _, a := range content.Actions() {
				if a.GetVerb() == "delete" || a.GetVerb() == "delete-collection" {
					deleted = append(deleted, a.GetResource().Resource)
				}
			}
			if slices.Contains(deleted, "configmaps") != test.deletes {
				t.Errorf("deleted: %v", deleted)
			}
		})
	}
}

// A webhook refuses the removal of the finalizer as if the namespace did not exist, or as a conflict: it is repeated.
func TestRefusedFinalization(t *testing.T) {
	for _, refusal := range []error{apierrors.NewNotFound(corev1.Resource("namespaces"), "n"),
		apierrors.NewConflict(corev1.Resource("namespaces"), "n", errors.New("a webhook says so"))} {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "1", ResourceVersion: "1",
			DeletionTimestamp: new(metav1.Now())},
			Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}}}
		client := fake.NewClientset(n)
		controllertest.FailOnce(client, "create", "namespaces/finalize", refusal)
		c := &Controller{client: client}
		if err := c.finalize(t.Context(), n); !errors.Is(err, refusal) {
			t.Errorf("%v: %v", refusal, err)
		}
		if err := c.finalize(t.Context(), n); err != nil {
			t.Error(err)
		}
	}
}

// While a finalizer of another controller blocks a namespace, checks become less frequent.
func TestRecheckDelay(t *testing.T) {
	for waited, want := range map[time.Duration]time.Duration{
		-time.Second: time.Second, 0: time.Second, 9 * time.Second: time.Second, 30 * time.Second: 3 * time.Second,
		time.Hour: 8 * time.Second,
	} {
		if got := recheckDelay(waited); got != want {
			t.Errorf("after %v: %v, want %v", waited, got, want)
		}
	}
}
