package accounttokens

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
)

func secret(account, uid string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "u",
		Annotations: map[string]string{corev1.ServiceAccountNameKey: account}},
		Type: corev1.SecretTypeServiceAccountToken}
	if uid != "" {
		s.Annotations[corev1.ServiceAccountUIDKey] = uid
	}
	return s
}

func robot(uid types.UID, secrets ...string) *corev1.ServiceAccount {
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: uid}}
	for _, s := range secrets {
		a.Secrets = append(a.Secrets, corev1.ObjectReference{Name: s})
	}
	return a
}

func signed(a *corev1.ServiceAccount, s *corev1.Secret) (string, error) {
	return string(a.UID) + " for " + s.Name, nil
}

func controller(client *fake.Clientset, sign Signer) *Controller {
	return New(client, inventory.New(discovery.NewDiscoveryClient(nil), nil, 0), sign, []byte("ca"))
}

// after returns the Secret after a reconciliation; nil if it was removed.
func after(t *testing.T, objects ...runtime.Object) *corev1.Secret {
	t.Helper()
	client := fake.NewClientset(objects...)
	if _, err := controller(client, signed).reconcile(t.Context(), "ns/s"); err != nil {
		t.Fatal(err)
	}
	s, err := client.CoreV1().Secrets("ns").Get(t.Context(), "s", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSecretIsFilled(t *testing.T) {
	s := after(t, secret("robot", ""), robot("a"))
	if s == nil || string(s.Data["token"]) != "a for s" || string(s.Data["ca.crt"]) != "ca" ||
		string(s.Data["namespace"]) != "ns" || s.Annotations[corev1.ServiceAccountUIDKey] != "a" {
		t.Errorf("%+v", s)
	}
	old := secret("robot", "a")
	old.Data = map[string][]byte{"token": []byte("mine"), "namespace": []byte("ns"), "ca.crt": []byte("an old one")}
	if s := after(t, old, robot("a")); string(s.Data["token"]) != "mine" || string(s.Data["ca.crt"]) != "ca" {
		t.Errorf("%+v", s)
	}
}

func TestSecretIsRemovedWithItsAccount(t *testing.T) {
	if s := after(t, secret("robot", "a")); s != nil {
		t.Errorf("kept without its account: %+v", s)
	}
	if s := after(t, secret("robot", "a"), robot("b")); s != nil {
		t.Errorf("kept for another account of its name: %+v", s)
	}
	opaque := secret("robot", "a")
	opaque.Type = corev1.SecretTypeOpaque
	if s := after(t, opaque); s == nil || s.Data != nil {
		t.Errorf("an ordinary secret: %+v", s)
	}
}

// A webhook refuses the deletion as if the Secret did not exist: it is tried again.
func TestRefusedDeletionIsRetried(t *testing.T) {
	client := fake.NewClientset(secret("robot", "a"))
	controllertest.FailOnce(client, "delete", "secrets", apierrors.NewNotFound(corev1.Resource("secrets"), "s"))
	c := controller(client, signed)
	if _, err := c.reconcile(t.Context(), "ns/s"); err == nil {
		t.Error("the secret is there, and no error")
	}
	if _, err := c.reconcile(t.Context(), "ns/s"); err != nil {
		t.Error(err)
	}
}

// A webhook refuses the token as if the Secret did not exist: it is tried again.
func TestRefusedTokenIsRetried(t *testing.T) {
	client := fake.NewClientset(secret("robot", ""), robot("a"))
	controllertest.FailOnce(client, "update", "secrets", apierrors.NewNotFound(corev1.Resource("secrets"), "s"))
	c := controller(client, signed)
	if _, err := c.reconcile(t.Context(), "ns/s"); err == nil {
		t.Error("the secret has no token, and no error")
	}
	if _, err := c.reconcile(t.Context(), "ns/s"); err != nil {
		t.Error(err)
	}
}

func TestSignerFails(t *testing.T) {
	client := fake.NewClientset(secret("robot", ""), robot("a"))
	c := controller(client, func(*corev1.ServiceAccount, *corev1.Secret) (string, error) {
		return "", errors.New("no key")
	})
	if _, err := c.reconcile(t.Context(), "ns/s"); err == nil {
		t.Error("not retried")
	}
}

func TestDeletedSecretLeavesItsAccount(t *testing.T) {
	client := fake.NewClientset(robot("a", "s", "other"))
	c := controller(client, signed)
	kind := inventory.Kind{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}}
	gone := &metav1.PartialObjectMetadata{ObjectMeta: secret("robot", "a").ObjectMeta}
	c.Changed(kind, gone)
	c.Gone(kind, gone)
	if _, err := c.reconcile(t.Context(), "ns/s"); err != nil {
		t.Fatal(err)
	}
	a, err := client.CoreV1().ServiceAccounts("ns").Get(t.Context(), "robot", metav1.GetOptions{})
	if err != nil || len(a.Secrets) != 1 || a.Secrets[0].Name != "other" || len(c.accounts) != 0 {
		t.Errorf("%+v %v %v", a, c.accounts, err)
	}
}
