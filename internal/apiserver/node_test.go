package apiserver

import (
	"fmt"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// The agent of a node reads what its pods refer to as soon as they exist, and nothing else.
func testNodeRights(t *testing.T, r *running) {
	const ns = "node-rights"
	admin, ctx := r.admin(t).CoreV1(), t.Context()
	if _, err := r.admin(t).CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"account", "default"} {
		if _, err := admin.ServiceAccounts(ns).Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	mine, other := r.client(t, "system:node:mine", user.NodesGroup), r.client(t, "system:node:other", user.NodesGroup)
	var pod *corev1.Pod
	for i := range 20 {
		name := fmt.Sprint("p", i)
		if _, err := admin.Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := mine.CoreV1().Secrets(ns).Get(ctx, name, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Fatalf("a secret of no pod: %v", err)
		}
		var err error
		if pod, err = admin.Pods(ns).Create(ctx,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
				NodeName: "mine", ServiceAccountName: "account", Containers: []corev1.Container{{Name: "c", Image: "i",
					EnvFrom: []corev1.EnvFromSource{
						{SecretRef: &corev1.SecretEnvSource{
							LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}}}}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// The agent learns of the pod by its watch at the earliest.
		if i == 0 {
			w, err := mine.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=mine"})
			if err != nil {
				t.Fatal(err)
			}
			<-w.ResultChan()
			w.Stop()
		} else if _, err := mine.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := mine.CoreV1().Secrets(ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Fatalf("the secret of a new pod: %v", err)
		}
	}
	for what, err := range map[string]error{
		"another node's secret": errOf(other.CoreV1().Secrets(ns).Get(ctx, "p0", metav1.GetOptions{})),
		"all secrets":           errOf(mine.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{})),
		"all pods":              errOf(mine.CoreV1().Pods("").List(ctx, metav1.ListOptions{})),
		"other pods": errOf(other.CoreV1().Pods("").List(ctx,
			metav1.ListOptions{FieldSelector: "spec.nodeName=mine"})),
		"another node": errOf(mine.CoreV1().Nodes().Get(ctx, "other", metav1.GetOptions{})),
		"another's token": errOf(other.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "account", tokenFor(pod),
			metav1.CreateOptions{})),
		"token of an account": errOf(mine.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "default", tokenFor(pod),
			metav1.CreateOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"one secret by list": errOf(mine.CoreV1().Secrets(ns).List(ctx,
			metav1.ListOptions{FieldSelector: "metadata.name=p0"})),
		"own token": errOf(mine.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "account", tokenFor(pod),
			metav1.CreateOptions{})),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := mine.CoreV1().Nodes().Get(ctx, "mine", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its own Node before there is one: %v", err)
	}
	if err := admin.Pods(ns).Delete(ctx, "p0", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	// A role can grant more, and a review says that its list is incomplete.
	if _, err := r.admin(t).RbacV1().RoleBindings(ns).Create(ctx,
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "system:node:other"}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	review, err := other.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx,
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}},
		metav1.CreateOptions{})
	if err != nil || !review.Status.Incomplete || review.Status.EvaluationError == "" {
		t.Errorf("rules of a node: %+v, %v", review, err)
	}
}

func errOf[T any](_ T, err error) error { return err }

func tokenFor(p *corev1.Pod, audiences ...string) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name,
			UID: p.UID}}}
}
