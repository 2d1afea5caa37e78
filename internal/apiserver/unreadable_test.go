package apiserver

import (
	"errors"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"carob/internal/base/testwait"
)

// The errors about objects that cannot be read, such as those whose encryption key is lost, name these objects, and
// an administrator deletes them with ignoreStoreReadErrorWithClusterBreakingPotential. Others need the verb
// unsafe-delete-ignore-read-errors, and an object that can be read is not deleted in this way.
func TestUnreadableObjects(t *testing.T) {
	r := start(t, t.TempDir())
	r.allow(t, "deleter", rbacv1.PolicyRule{APIGroups: []string{"", "coordination.k8s.io"},
		Verbs: []string{"get", "list", "delete"}, Resources: []string{"secrets", "configmaps", "leases"}})
	unsafely := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
	for _, c := range []struct{ kind, stored string }{
		{"secrets", "k8s:enc:secretbox:v1:lost:abc"},
		{"configmaps", "k8s\x00junk"},
		{"leases", "k8s\x00junk"},
	} {
		t.Run(c.kind, func(t *testing.T) { r.unreadable(t, c.kind, c.stored, unsafely) })
	}
}

func (r *running) unreadable(t *testing.T, kind, stored string, unsafely metav1.DeleteOptions) {
	t.Helper()
	client := r.admin(t).CoreV1().RESTClient()
	base := "/api/v1/namespaces/default/"
	if kind == "leases" {
		base = "/apis/coordination.k8s.io/v1/namespaces/default/"
	}
	call := func(verb, name string, body any) error {
		request := client.Verb(verb).AbsPath(base + kind + name)
		if body != nil {
			request = request.Body(body)
		}
		return request.Do(t.Context()).Error()
	}
	text := []byte(`{"metadata":{"name":"good"}}`)
	if err := client.Post().AbsPath(base+kind).SetHeader("Content-Type", "application/json").Body(text).
		Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	keys := []string{"/" + kind + "/default/bad1", "/" + kind + "/default/bad2"}
	for _, key := range keys {
		if _, err := r.engine.Client.Client.Put(t.Context(), "/registry"+key, stored); err != nil {
			t.Fatal(err)
		}
	}
	err := call("GET", "/bad1", nil)
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "StorageError: corrupt object") {
		t.Errorf("get: %v", err)
	}
	err = call("GET", "", nil)
	if apierrors.ReasonForError(err) != metav1.StatusReasonStoreReadError {
		t.Fatalf("list: %v", err)
	}
	for i, key := range keys {
		var status apierrors.APIStatus
		if !errors.As(err, &status) || len(status.Status().Details.Causes) != len(keys) ||
			!strings.HasSuffix(status.Status().Details.Causes[i].Field, key) {
			t.Errorf("list: %+v lacks %s", err, key)
		}
	}
	if err := call("DELETE", "/bad1", nil); !apierrors.IsInternalError(err) {
		t.Errorf("delete: %v", err)
	}
	if err := call("DELETE", "/good", &unsafely); err == nil {
		t.Error("an object that can be read was deleted")
	}
	deleter := r.as(t, "deleter", restclient.ImpersonationConfig{}).CoreV1().RESTClient()
	if err := deleter.Delete().AbsPath(base + kind + "/bad1").Body(&unsafely).Do(t.Context()).
		Error(); !apierrors.IsForbidden(err) {
		t.Errorf("delete without the verb unsafe-delete-ignore-read-errors: %v", err)
	}
	for _, name := range []string{"/bad1", "/bad2"} {
		if err := call("DELETE", name, &unsafely); err != nil {
			t.Errorf("delete %s unsafely: %v", name, err)
		}
		if err := call("GET", name, nil); !apierrors.IsNotFound(err) {
			t.Errorf("after the deletion: %v", err)
		}
	}
	testwait.Until(t, kind+" are listed again", func() error { return call("GET", "", nil) })
	if err := call("GET", "/good", nil); err != nil {
		t.Errorf("the other object: %v", err)
	}
}
