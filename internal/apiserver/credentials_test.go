package apiserver

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"carob/internal/apiserver/tokens"
)

// bearer is a client by the network with a token.
func (r *running) bearer(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(&restclient.Config{Host: "https://" + r.cfg.Listener.Addr().String(), QPS: -1, BearerToken: token,
		TLSClientConfig: restclient.TLSClientConfig{CAData: r.pki.CAPEM}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// whoAmI asks the server who the client is.
func whoAmI(t *testing.T, c kubernetes.Interface) (authenticationv1.UserInfo, error) {
	t.Helper()
	review, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

func testBootstrapToken(t *testing.T, r *running) {
	secrets := r.admin(t).CoreV1().Secrets("kube-system")
	joining := r.bearer(t, "abcdef.0123456789abcdef")
	if _, err := whoAmI(t, joining); !apierrors.IsUnauthorized(err) {
		t.Errorf("a token that does not exist: %v", err)
	}
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token", StringData: map[string]string{
		"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	who, err := whoAmI(t, joining)
	if err != nil || who.Username != "system:bootstrap:abcdef" || len(who.Groups) != 2 || who.Groups[0] != "system:bootstrappers" || who.Groups[1] != "system:authenticated" {
		t.Errorf("%+v %v", who, err)
	}
	if err := secrets.Delete(t.Context(), "bootstrap-token-abcdef", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token to be of no use", func() bool { _, err := whoAmI(t, joining); return apierrors.IsUnauthorized(err) })
}

func testTokenInSecret(t *testing.T, r *running) {
	api := r.admin(t).CoreV1()
	account, err := api.ServiceAccounts("kube-system").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "robot-token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}}, Type: corev1.SecretTypeServiceAccountToken}
	token, err := r.SecretToken(account, secret)
	if err != nil {
		t.Fatal(err)
	}
	secret.StringData = map[string]string{"token": token}
	if _, err := api.Secrets("kube-system").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	robot := r.bearer(t, token)
	who, err := whoAmI(t, robot)
	if err != nil || who.Username != "system:serviceaccount:kube-system:robot" || who.UID != string(account.UID) {
		t.Errorf("%+v %v", who, err)
	}
	if s, err := api.Secrets("kube-system").Get(t.Context(), "robot-token", metav1.GetOptions{}); err != nil || s.Labels[tokens.LabelLastUsed] == "" {
		t.Errorf("its use was not marked: %+v %v", s, err)
	}
	review, err := r.admin(t).AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != who.Username {
		t.Errorf("%+v %v", review, err)
	}
	if err := api.Secrets("kube-system").Delete(t.Context(), "robot-token", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token to be of no use", func() bool { _, err := whoAmI(t, robot); return apierrors.IsUnauthorized(err) })
}
