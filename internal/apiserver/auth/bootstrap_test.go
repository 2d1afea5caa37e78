package auth

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// oneSecret is a store with one Secret of kube-system.
type oneSecret struct{ *corev1.Secret }

func (s oneSecret) Get(_ context.Context, r schema.GroupResource, namespace, name string) (runtime.Object, error) {
	if r.Resource == "secrets" && namespace == metav1.NamespaceSystem && name == s.Name {
		return s.Secret, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

func TestBootstrapToken(t *testing.T) {
	const token = "abcdef.0123456789abcdef"
	for _, c := range []struct {
		name, token string
		change      func(s *corev1.Secret)
		groups      []string // nil: no opinion
	}{
		{"good", token, nil, []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"}},
		{"no more groups", token, func(s *corev1.Secret) { delete(s.Data, "auth-extra-groups") },
			[]string{"system:bootstrappers"}},
		{"not yet expired", token,
			func(s *corev1.Secret) { s.Data["expiration"] = []byte(time.Now().Add(time.Hour).Format(time.RFC3339)) },
			[]string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"}},
		{"expired", token, func(s *corev1.Secret) {
			s.Data["expiration"] = []byte(time.Now().Add(-time.Second).Format(time.RFC3339))
		}, nil},
		{"an end nobody can read", token, func(s *corev1.Secret) { s.Data["expiration"] = []byte("soon") }, nil},
		{"wrong password", "abcdef.0123456789abcdee", nil, nil},
		{"another token", "abcdee.0123456789abcdef", nil, nil},
		{"another form", "abcdef", nil, nil},
		{"named for another", token, func(s *corev1.Secret) { s.Data["token-id"] = []byte("abcdee") }, nil},
		{"for signing only", token, func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") }, nil},
		{"being deleted", token, func(s *corev1.Secret) { s.DeletionTimestamp = new(metav1.Now()) }, nil},
		{"an ordinary secret", token, func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, nil},
		{"a group it may not give", token,
			func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:masters") }, nil},
		{"empty", token, func(s *corev1.Secret) { s.Data = nil }, nil},
	} {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"},
			Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{
				"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
				"usage-bootstrap-authentication": []byte("true"),
				"auth-extra-groups":              []byte("system:bootstrappers:kubeadm:default-node-token")}}
		if c.change != nil {
			c.change(s)
		}
		r, ok, err := NewBootstrap(oneSecret{s}).AuthenticateToken(t.Context(), c.token)
		switch {
		case err != nil || ok != (c.groups != nil):
			t.Errorf("%s: %v %v", c.name, ok, err)
		case ok && (r.User.GetName() != "system:bootstrap:abcdef" || !slices.Equal(r.User.GetGroups(), c.groups)):
			t.Errorf("%s: %v", c.name, r.User)
		}
	}
}
