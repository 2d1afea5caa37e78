package auth

import (
	"context"
	"crypto/subtle"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/util/secrets"
	"k8s.io/cluster-bootstrap/util/tokens"
	"k8s.io/klog/v2"
)

// objectGetter is the part of admission.Reader that reads a Secret.
type objectGetter interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error)
}

// NewBootstrap authenticates bootstrap tokens (ID.SECRET), with which machines join: user
// system:bootstrap:ID in system:bootstrappers and the groups in the token's Secret in kube-system.
// It has no opinion about other tokens, nor about one that is wrong, expired, or not for
// authentication.
func NewBootstrap(reader objectGetter) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		id, password, err := tokens.ParseToken(token)
		if err != nil {
			return nil, false, nil //nolint:nilerr // a token of another form is for another authenticator
		}
		obj, err := reader.Get(ctx, corev1.Resource("secrets"), metav1.NamespaceSystem,
			bootstrapapi.BootstrapTokenSecretPrefix+id)
		if apierrors.IsNotFound(err) {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, fmt.Errorf("look up a bootstrap token: %w", err)
		}
		s, ok := obj.(*corev1.Secret)
		if !ok {
			return nil, false, fmt.Errorf("look up a bootstrap token: it is a %T", obj)
		}
		groups, why := bootstrapGroups(s, id, password, time.Now())
		if why != "" {
			klog.FromContext(ctx).V(3).Info("A bootstrap token was refused", "secret", klog.KObj(s), "reason", why)
			return nil, false, nil
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: bootstrapapi.BootstrapUserPrefix + id,
			Groups: groups}}, true, nil
	})
}

// bootstrapGroups returns the groups of a token's user, or why the token is invalid.
func bootstrapGroups(s *corev1.Secret, id, password string, now time.Time) (groups []string, why string) {
	switch {
	case s.DeletionTimestamp != nil:
		return nil, "it is being deleted"
	case s.Type != bootstrapapi.SecretTypeBootstrapToken:
		return nil, "the secret is of another type"
	case subtle.ConstantTimeCompare(s.Data[bootstrapapi.BootstrapTokenSecretKey], []byte(password)) != 1:
		return nil, "the secret part is wrong"
	case secrets.GetData(s, bootstrapapi.BootstrapTokenIDKey) != id:
		return nil, "the secret is named for another token"
	case secrets.HasExpired(s, now):
		return nil, "it has expired"
	case secrets.GetData(s, bootstrapapi.BootstrapTokenUsageAuthentication) != "true":
		return nil, "it is not for authentication"
	}
	groups, err := secrets.GetGroups(s)
	if err != nil {
		return nil, err.Error()
	}
	return groups, ""
}
