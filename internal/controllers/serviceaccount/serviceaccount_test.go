package serviceaccount

import (
	"errors"
	"slices"
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

// Each active namespace without the account gets it; responses that show that nothing is left to do are not
// errors.
func TestDefaultAccount(t *testing.T) {
	resource := schema.GroupResource{Resource: "serviceaccounts"}
	ending := apierrors.NewForbidden(resource, Name, errors.New("is being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, c := range []struct {
		name    string
		phase   corev1.NamespacePhase // empty: the namespace does not exist
		account bool
		answer  error
		created bool
		fails   bool
	}{
		{name: "it is missing", phase: corev1.NamespaceActive, created: true},
		{name: "it exists", phase: corev1.NamespaceActive, account: true},
		{name: "the namespace is being deleted", phase: corev1.NamespaceTerminating},
		{name: "the namespace is gone"},
		{name: "another client was faster", phase: corev1.NamespaceActive, created: true,
			answer: apierrors.NewAlreadyExists(resource, Name)},
		{name: "the namespace has just gone, or a webhook's NotFound", phase: corev1.NamespaceActive, created: true,
			fails: true, answer: apierrors.NewNotFound(resource, Name)},
		{name: "the namespace has just begun to end", phase: corev1.NamespaceActive, created: true, answer: ending},
		{name: "a failure", phase: corev1.NamespaceActive, created: true, fails: true,
			answer: apierrors.NewInternalError(errors.New("no"))},
	} {
		api := fake.NewClientset()
		var created []string
		api.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
			o := a.(clienttesting.CreateAction).GetObject().(*corev1.ServiceAccount) //nolint:errcheck,forcetypeassert // the verb says so
			created = append(created, o.Namespace+"/"+o.Name)
			return true, o, c.answer
		})
		namespaces, accounts := source.Namespaces(api), source.ServiceAccounts(api, Name)
		controller, err := New(api, namespaces, accounts)
		if err != nil {
			t.Fatal(err)
		}
		if c.phase != "" {
			err = namespaces.Replace([]any{&corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{Name: "ns", ResourceVersion: "1"},
				Status:     corev1.NamespaceStatus{Phase: c.phase}}}, "2")
		}
		if c.account {
			err = errors.Join(err, accounts.Replace([]any{&corev1.ServiceAccount{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: Name, ResourceVersion: "1"}}}, "2"))
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := controller.reconcile(t.Context(), "ns")
		var want []string
		if c.created {
			want = []string{"ns/default"}
		}
		if !slices.Equal(created, want) || (err != nil) != c.fails || again != 0 {
			t.Errorf("%s: created %q, %v", c.name, created, err)
		}
	}
}
