package apiserver

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"carob/internal/base/partiallist"
	"carob/internal/base/testwait"
)

// A stored object that cannot be read neither ends nor delays the start. Lists that include it fail and name it, also
// from the watch cache; those of other namespaces, and parts of this process that accept less, get the rest. When it
// was deleted, everything is listed again, without a new start.
func TestStartWithUnreadableObjects(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	api := r.admin(t).CoreV1()
	service, err := api.Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "bad"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.allow(t, "reader", rbacv1.PolicyRule{APIGroups: []string{""}, Verbs: []string{"list"},
		Resources: []string{"namespaces"}})
	keys := []string{"services/specs/default/bad", "pods/default/bad", "secrets/default/bad", "minions/bad",
		"configmaps/default/bad", "clusterroles/bad", "priorityclasses/bad", "namespaces/bad"}
	for _, k := range keys {
		if _, err := r.engine.Client.Client.Put(t.Context(), "/registry/"+k, "k8s\x00junk"); err != nil {
			t.Fatal(err)
		}
	}
	r.stop()

	r = start(t, dir)
	if unread, err := r.options.Wait(t.Context(), readTime); err != nil || len(unread) > 0 {
		t.Errorf("kinds without a cache: %v, %v", unread, err)
	}
	admin := r.admin(t)
	address := service.Spec.ClusterIP
	stored := r.stores[servicesResource]
	if found, err := r.allocator.Repair(asServer(t.Context()), stored, readServices(stored)); err != nil ||
		len(found) > 0 {
		t.Errorf("repair: %v, %v", found, err)
	}
	if _, err := admin.NetworkingV1().IPAddresses().Get(t.Context(), address, metav1.GetOptions{}); err != nil {
		t.Errorf("the address of a service that cannot be read: %v", err)
	}
	other := r.as(t, "reader", restclient.ImpersonationConfig{}).CoreV1()
	testwait.Until(t, "rights are known", func() error {
		_, err := other.Namespaces().List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=default"})
		return err
	})
	for kind, list := range listsOfUnreadable(admin) {
		for _, version := range []string{"", "0"} {
			if err := list(t.Context(), "default", version); apierrors.ReasonForError(err) !=
				metav1.StatusReasonStoreReadError {
				t.Errorf("%s, version %q: %v", kind, version, err)
			}
			if err := list(partiallist.With(t.Context()), "default", version); err != nil {
				t.Errorf("%s, version %q, partial: %v", kind, version, err)
			}
			if kind == "nodes" {
				continue
			}
			if err := list(t.Context(), "kube-public", version); err != nil {
				t.Errorf("%s of another namespace, version %q: %v", kind, version, err)
			}
		}
	}
	if _, err := admin.CoreV1().Pods("default").Get(t.Context(), "bad",
		metav1.GetOptions{ResourceVersion: "0"}); !apierrors.IsInternalError(err) {
		t.Errorf("get: %v", err)
	}
	unsafely := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
	if err := admin.CoreV1().Pods("default").Delete(t.Context(), "bad", unsafely); err != nil {
		t.Fatal(err)
	}
	pods := listsOfUnreadable(admin)["pods"]
	testwait.Until(t, "pods are listed", func() error { return pods(t.Context(), "default", "0") })
}

// listsOfUnreadable list the objects of a namespace, by their kind, at a version.
func listsOfUnreadable(c kubernetes.Interface) map[string]func(context.Context, string, string) error {
	at := func(v string) metav1.ListOptions { return metav1.ListOptions{ResourceVersion: v} }
	return map[string]func(context.Context, string, string) error{
		"services": func(ctx context.Context, ns, v string) error {
			_, err := c.CoreV1().Services(ns).List(ctx, at(v))
			return err
		},
		"pods": func(ctx context.Context, ns, v string) error {
			_, err := c.CoreV1().Pods(ns).List(ctx, at(v))
			return err
		},
		"secrets": func(ctx context.Context, ns, v string) error {
			_, err := c.CoreV1().Secrets(ns).List(ctx, at(v))
			return err
		},
		"nodes": func(ctx context.Context, _, v string) error {
			_, err := c.CoreV1().Nodes().List(ctx, at(v))
			return err
		},
	}
}

// Neither does an object that extends the API. While a definition cannot be read, discovery is incomplete, so that no
// namespace ends without its custom resources; when it was deleted, custom resources are served.
func TestStartWithUnreadableExtensions(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	r.establish(t, gadgets())
	for _, key := range []string{"apiservices/v1.bad.example.org",
		"apiextensions.k8s.io/customresourcedefinitions/bad.example.org"} {
		if _, err := r.engine.Client.Client.Put(t.Context(), "/registry/"+key, "k8s\x00junk"); err != nil {
			t.Fatal(err)
		}
	}
	r.stop()

	r = start(t, dir)
	discovery := r.admin(t).Discovery()
	if _, _, err := discovery.ServerGroupsAndResources(); err == nil ||
		!strings.Contains(err.Error(), "unread.carob.dev") {
		t.Errorf("discovery: %v", err)
	}
	unsafely := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
	if err := r.definitions(t).ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), "bad.example.org",
		unsafely); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "custom resources are served", func() error {
		_, err := r.objects(t).Resource(gadgetResource).List(t.Context(), metav1.ListOptions{})
		return err
	})
	testwait.Until(t, "discovery is complete", func() error {
		_, _, err := discovery.ServerGroupsAndResources()
		return err
	})
}
