package rootca

import (
	"errors"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"carob/internal/controllers/source"
)

// The config map of each active namespace has the CA and nothing else.
func TestRootCA(t *testing.T) {
	resource := schema.GroupResource{Resource: "configmaps"}
	right := map[string]string{"ca.crt": "PEM"}
	for _, c := range []struct {
		name   string
		phase  corev1.NamespacePhase
		data   map[string]string // of the config map; nil: there is none
		answer error
		verb   string // of the request; empty: none
		fails  bool
	}{
		{name: "it is missing", phase: corev1.NamespaceActive, verb: "create"},
		{name: "it is right", phase: corev1.NamespaceActive, data: right},
		{name: "another CA", phase: corev1.NamespaceActive, data: map[string]string{"ca.crt": "old"}, verb: "update"},
		{name: "one key more", phase: corev1.NamespaceActive, data: map[string]string{"ca.crt": "PEM", "x": "y"}, verb: "update"},
		{name: "the namespace is being deleted", phase: corev1.NamespaceTerminating},
		{name: "another client was faster", phase: corev1.NamespaceActive, verb: "create",
			answer: apierrors.NewAlreadyExists(resource, Name)},
		{name: "a conflict, or a webhook's", phase: corev1.NamespaceActive, data: map[string]string{}, verb: "update",
			fails: true, answer: apierrors.NewConflict(resource, Name, errors.New("newer"))},
		{name: "a webhook's NotFound", phase: corev1.NamespaceActive, data: map[string]string{}, verb: "update",
			fails: true, answer: apierrors.NewNotFound(resource, Name)},
		{name: "no namespace, or a webhook's NotFound", phase: corev1.NamespaceActive, verb: "create", fails: true,
			answer: apierrors.NewNotFound(resource, Name)},
		{name: "a failed create", phase: corev1.NamespaceActive, verb: "create", fails: true, answer: errors.New("no")},
		{name: "a failed update", phase: corev1.NamespaceActive, data: map[string]string{}, verb: "update", fails: true,
			answer: errors.New("no")},
	} {
		api := fake.NewClientset()
		verb := ""
		api.PrependReactor("*", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
			o, ok := a.(interface{ GetObject() runtime.Object }).GetObject().(*corev1.ConfigMap)
			if verb = a.GetVerb(); !ok || o.Namespace != "ns" || o.Name != Name || !maps.Equal(o.Data, right) {
				t.Errorf("%s: %s of %v", c.name, verb, o)
			}
			return true, o, c.answer
		})
		namespaces, configMaps := source.Namespaces(api), source.ConfigMaps(api, Name)
		controller, err := New(api, []byte("PEM"), namespaces, configMaps)
		if err != nil {
			t.Fatal(err)
		}
		err = namespaces.Replace([]any{&corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: "ns", ResourceVersion: "1"},
			Status:     corev1.NamespaceStatus{Phase: c.phase}}}, "2")
		if c.data != nil {
			err = errors.Join(err, configMaps.Replace([]any{&corev1.ConfigMap{Data: c.data,
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: Name, ResourceVersion: "1"}}}, "2"))
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err = controller.reconcile(t.Context(), "ns"); verb != c.verb || (err != nil) != c.fails {
			t.Errorf("%s: %q, %v", c.name, verb, err)
		}
	}
}
