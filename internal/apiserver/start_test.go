package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"carob/internal/base/testwait"
)

// bind stores a policy for new ConfigMaps in a namespace, and its binding.
func (r *running) bind(t *testing.T, p *admissionregistrationv1.ValidatingAdmissionPolicy, namespace string,
	param *admissionregistrationv1.ParamRef) {
	t.Helper()
	c := r.admin(t).AdmissionregistrationV1()
	p.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{"CREATE"},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"configmaps"}}}}}}
	if _, err := c.ValidatingAdmissionPolicies().Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ValidatingAdmissionPolicyBindings().Create(t.Context(),
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: p.Name},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: p.Name, ParamRef: param,
				ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createConfigMap creates a ConfigMap with a new name.
func createConfigMap(ctx context.Context, c kubernetes.Interface) error {
	_, err := c.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}}, metav1.CreateOptions{})
	return err
}

// denied returns an error unless err is the denial of a policy with a message.
func denied(err error, message string) error {
	if (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && strings.Contains(err.Error(), message) {
		return nil
	}
	return fmt.Errorf("not denied because of %q: %w", message, err)
}

// A request that comes before the stored policies and definitions are known waits for them: no write bypasses a
// policy, and no kind seems to be gone.
func TestRequestsDuringTheStart(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	r.establish(t, gadgets())
	r.bind(t, &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "none at all"}}}},
		"default", nil)
	admin := r.admin(t)
	testwait.Until(t, "the policy", func() error { return denied(createConfigMap(t.Context(), admin), "none at all") })
	r.stop()

	s, err := New(t.Context(), newConfig(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	config := s.ClientConfig("admin", user.SystemPrivilegedGroup)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := restclient.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	wrote, listed := make(chan error, 1), make(chan error, 1)
	go func() { wrote <- createConfigMap(t.Context(), client) }()
	go func() {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			config.Host+"/apis/example.org/v1/gadgets", nil)
		if err != nil {
			listed <- err
			return
		}
		res, err := plain.Do(q)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %s", res.Status)
			}
		}
		listed <- err
	}()
	early, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() { gaveUp <- createConfigMap(early, client) }()
	if cancel(); <-gaveUp == nil {
		t.Error("a write was accepted before the start")
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	if err := denied(<-wrote, "none at all"); err != nil {
		t.Error(err)
	}
	if err := <-listed; err != nil {
		t.Errorf("a custom resource: %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A policy may be older than the definition of its parameters, which may be deleted and come back.
func TestLateParameters(t *testing.T) {
	r := start(t, t.TempDir())
	ctx, c := t.Context(), r.admin(t)
	deny := admissionregistrationv1.DenyAction
	r.bind(t, &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "example.org/v1", Kind: "Gadget"},
			Validations: []admissionregistrationv1.Validation{{Expression: "params.spec.color == 'red'",
				Message: "not red"}}}}, "default",
		&admissionregistrationv1.ParamRef{Name: "one", Namespace: "default", ParameterNotFoundAction: &deny})
	denial := func(message string) {
		t.Helper()
		testwait.Until(t, message, func() error { return denied(createConfigMap(ctx, c), message) })
	}
	denial("failed to find resource referenced by paramKind")
	objects := r.objects(t).Resource(gadgetResource).Namespace("default")
	for range 2 {
		r.establish(t, gadgets())
		denial("no params found")
		if _, err := objects.Create(ctx, gadget("one", map[string]any{"color": "red"}),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "a parameter that allows it", func() error { return createConfigMap(ctx, c) })
		if err := r.definitions(t).ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, gadgets().Name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the definition is gone", func() error {
			_, err := r.definitions(t).ApiextensionsV1().CustomResourceDefinitions().Get(ctx, gadgets().Name,
				metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("get: %w", err)
			}
			return nil
		})
		denial("no params found")
	}
}
