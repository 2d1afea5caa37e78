package apiserver

import (
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"carob/internal/apiserver/tokens"
	"carob/internal/base/pki"
	"carob/internal/base/testwait"
)

// bearer is a client over the network with a token.
func (r *running) bearer(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(&restclient.Config{Host: "https://" + r.cfg.Listener.Addr().String(), QPS: -1,
		BearerToken:     token,
		TLSClientConfig: restclient.TLSClientConfig{CAData: r.pki.CAPEM}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// whoAmI asks the server who the client is.
func whoAmI(t *testing.T, c kubernetes.Interface) (authenticationv1.UserInfo, error) {
	t.Helper()
	review, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
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
	if _, err := secrets.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"},
			Type: "bootstrap.kubernetes.io/token", StringData: map[string]string{
				"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	who, err := whoAmI(t, joining)
	if err != nil || who.Username != "system:bootstrap:abcdef" || len(who.Groups) != 2 ||
		who.Groups[0] != "system:bootstrappers" || who.Groups[1] != "system:authenticated" {
		t.Errorf("%+v %v", who, err)
	}
	if err := secrets.Delete(t.Context(), "bootstrap-token-abcdef", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the token to be of no use",
		func() bool { _, err := whoAmI(t, joining); return apierrors.IsUnauthorized(err) })
}

func testTokenInSecret(t *testing.T, r *running) {
	api := r.admin(t).CoreV1()
	account, err := api.ServiceAccounts("kube-system").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "robot-token",
		Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}},
		Type: corev1.SecretTypeServiceAccountToken}
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
	if s, err := api.Secrets("kube-system").Get(t.Context(), "robot-token", metav1.GetOptions{}); err != nil ||
		s.Labels[tokens.LabelLastUsed] == "" {
		t.Errorf("its use was not marked: %+v %v", s, err)
	}
	review, err := r.admin(t).AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != who.Username {
		t.Errorf("%+v %v", review, err)
	}
	if err := api.Secrets("kube-system").Delete(t.Context(), "robot-token", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the token to be of no use",
		func() bool { _, err := whoAmI(t, robot); return apierrors.IsUnauthorized(err) })
}

// as is a client over the network that impersonates another user.
func (r *running) as(t *testing.T, who string, other restclient.ImpersonationConfig) kubernetes.Interface {
	t.Helper()
	pair, err := r.pki.Issue(pki.Request{CommonName: who}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c, err := kubernetes.NewForConfig(&restclient.Config{Host: "https://" + r.cfg.Listener.Addr().String(), QPS: -1,
		Impersonate:     other,
		TLSClientConfig: restclient.TLSClientConfig{CAData: r.pki.CAPEM, CertData: pair.CertPEM, KeyData: pair.KeyPEM}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// allow gives a user permissions in the whole cluster, and waits until they are effective.
func (r *running) allow(t *testing.T, who string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	api := r.admin(t).RbacV1()
	if _, err := api.ClusterRoles().Create(t.Context(),
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: who}, Rules: rules},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ClusterRoleBindings().Create(t.Context(),
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: who},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: who}},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: who}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the rights of "+who, func() bool {
		for _, rule := range rules {
			a := &authorizationv1.ResourceAttributes{Verb: rule.Verbs[0], Group: rule.APIGroups[0],
				Resource: rule.Resources[0]}
			if len(rule.ResourceNames) > 0 {
				a.Name = rule.ResourceNames[0]
			}
			a.Resource, a.Subresource, _ = strings.Cut(a.Resource, "/")
			review, err := r.admin(t).AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
				&authorizationv1.SubjectAccessReview{
					Spec: authorizationv1.SubjectAccessReviewSpec{User: who, ResourceAttributes: a}},
				metav1.CreateOptions{})
			if err != nil || !review.Status.Allowed {
				return false
			}
		}
		return true
	})
}

func testImpersonation(t *testing.T, r *running) {
	full := restclient.ImpersonationConfig{UserName: "ann", UID: "u-1", Groups: []string{"dev"},
		Extra: map[string][]string{"scopes": {"read"}}}
	if _, err := whoAmI(t, r.as(t, "boss", full)); !apierrors.IsForbidden(err) {
		t.Errorf("without a right: %v", err)
	}
	impersonate := func(group, resource, name string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"impersonate"}, APIGroups: []string{group},
			Resources: []string{resource}, ResourceNames: []string{name}}
	}
	r.allow(t, "boss", impersonate("", "users", "ann"), impersonate("", "groups", "dev"),
		impersonate("authentication.k8s.io", "uids", "u-1"),
		impersonate("authentication.k8s.io", "userextras/scopes", "read"))
	who, err := whoAmI(t, r.as(t, "boss", full))
	if err != nil || who.Username != "ann" || who.UID != "u-1" ||
		!slices.Equal(who.Groups, []string{"dev", "system:authenticated"}) ||
		!slices.Equal(who.Extra["scopes"], authenticationv1.ExtraValue{"read"}) {
		t.Errorf("%+v %v", who, err)
	}
	for what, change := range map[string]func(*restclient.ImpersonationConfig){
		"another user":  func(c *restclient.ImpersonationConfig) { c.UserName = "bob" },
		"another uid":   func(c *restclient.ImpersonationConfig) { c.UID = "u-2" },
		"another group": func(c *restclient.ImpersonationConfig) { c.Groups = []string{"system:masters"} },
		"another extra": func(c *restclient.ImpersonationConfig) { c.Extra = map[string][]string{"scopes": {"write"}} },
	} {
		other := full
		change(&other)
		if _, err := whoAmI(t, r.as(t, "boss", other)); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// KEP-5284: a user may impersonate another one for some requests only.
func testConstrainedImpersonation(t *testing.T, r *running) {
	bob := r.as(t, "helper", restclient.ImpersonationConfig{UserName: "bob"})
	if _, err := bob.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a right: %v", err)
	}
	r.allow(t, "bob", rbacv1.PolicyRule{Verbs: []string{"list"}, APIGroups: []string{""},
		Resources: []string{"nodes", "secrets"}})
	r.allow(t, "helper", rbacv1.PolicyRule{Verbs: []string{"impersonate:user-info"},
		APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"users"}, ResourceNames: []string{"bob"}},
		rbacv1.PolicyRule{Verbs: []string{"impersonate-on:user-info:list"}, APIGroups: []string{""},
			Resources: []string{"nodes"}})
	if _, err := bob.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("what it may do as another: %v", err)
	}
	if _, err := bob.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("what it may not: %v", err)
	}
	carl := r.as(t, "helper", restclient.ImpersonationConfig{UserName: "carl"})
	if _, err := carl.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("as somebody else: %v", err)
	}
}
