// Package serviceaccount creates the default service account in every namespace, at once and again
// when it is deleted. The controller manager runs it; it must never change other accounts.
package serviceaccount

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
)

// Name of the service account that every namespace has.
const Name = "default"

// Controller maintains the service accounts. Its key is the namespace.
type Controller struct {
	*reconciler.Reconciler
	client     kubernetes.Interface
	namespaces cache.Store
	accounts   cache.Store
}

// New returns a controller; accounts watches the service accounts named Name.
func New(client kubernetes.Interface, namespaces, accounts *source.Watch) (*Controller, error) {
	c := &Controller{client: client, namespaces: namespaces.Objects(), accounts: accounts.Objects()}
	c.Reconciler = reconciler.New("serviceaccount", 8, c.reconcile)
	if err := reconciler.OnNamespace(namespaces, c.Add); err != nil {
		return nil, fmt.Errorf("serviceaccount: watch namespaces: %w", err)
	}
	if err := reconciler.OnChange(accounts, func(obj metav1.Object) { c.Add(obj.GetNamespace()) }); err != nil {
		return nil, fmt.Errorf("serviceaccount: watch service accounts: %w", err)
	}
	return c, nil
}

func (c *Controller) reconcile(ctx context.Context, namespace string) (time.Duration, error) {
	if !reconciler.Active(c.namespaces, namespace) {
		return 0, nil
	}
	if _, exists, _ := c.accounts.GetByKey(namespace + "/" + Name); exists {
		return 0, nil
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: Name}}
	_, err := c.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	if reconciler.Created(err, c.namespaces, namespace) {
		return 0, nil
	}
	return 0, fmt.Errorf("create service account %s/%s: %w", namespace, Name, err)
}
