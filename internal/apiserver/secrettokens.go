package apiserver

import (
	"context"
	"errors"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"carob/internal/apiserver/tokens"
)

// The names are upstream's.
const (
	tracking     = "kube-apiserver-legacy-service-account-token-tracking"
	trackedSince = "since"
)

// trackTokens maintains the config map with the date since which the use of tokens in Secrets is
// recorded, for the controller that removes unused ones.
func (s *Server) trackTokens(ctx context.Context, now time.Time) error {
	want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: tracking, Namespace: metav1.NamespaceSystem},
		Data: map[string]string{trackedSince: now.UTC().Format(time.DateOnly)}}
	st := s.stores[corev1.Resource("configmaps")]
	ctx = apirequest.WithNamespace(ctx, want.Namespace)
	dated := func(o *corev1.ConfigMap) bool {
		_, err := time.Parse(time.DateOnly, o.Data[trackedSince])
		return err == nil
	}
	if o, err := st.Get(ctx, want.Name, &metav1.GetOptions{}); err == nil {
		if m, ok := o.(*corev1.ConfigMap); ok && dated(m) {
			return nil
		}
	}
	return upsert(ctx, st, want, func(o *corev1.ConfigMap) bool {
		if dated(o) {
			return false
		}
		if o.Data == nil {
			o.Data = map[string]string{}
		}
		maps.Copy(o.Data, want.Data)
		return true
	})
}

// SecretToken creates the token of an account for a Secret of type
// kubernetes.io/service-account-token. It is valid once the Secret contains it.
func (s *Server) SecretToken(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return s.issuer.ForSecret(account, secret)
}

// secretTokenUsed sets the label of the last use on a Secret whose token was used, once a day.
func (s *Server) secretTokenUsed(ctx context.Context, secret *corev1.Secret, day string) {
	ctx = apirequest.WithNamespace(asServer(ctx), secret.Namespace)
	mark := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		o, ok := old.DeepCopyObject().(*corev1.Secret)
		if !ok || o.UID != secret.UID {
			return nil, errOther
		}
		tokens.MarkUsed(o, day)
		return o, nil
	})
	_, _, err := s.stores[corev1.Resource("secrets")].Update(ctx, secret.Name, mark, rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil && !errors.Is(err, errOther) && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Error(err, "Marking a secret whose token was used failed", "secret", klog.KObj(secret))
	}
}

var errOther = errors.New("the secret was deleted and created again")
