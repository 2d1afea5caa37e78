// Package rootca publishes the CA of the API server in every namespace, as the ConfigMap that
// service account volumes project into pods. The controller manager runs it; it must never change
// other ConfigMaps.
package rootca

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
)

// Name of the config map and of its only key.
const (
	Name = "kube-root-ca.crt"
	key  = "ca.crt"
)

const (
	descriptionAnnotation = "kubernetes.io/description"
	description           = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."
)

// Controller maintains the ConfigMaps. Its key is the namespace.
type Controller struct {
	*reconciler.Reconciler
	client     kubernetes.Interface
	ca         string // PEM
	namespaces cache.Store
	configMaps cache.Store
}

// New returns a controller that publishes ca, certificates in PEM; configMaps watches those named Name.
func New(client kubernetes.Interface, ca []byte, namespaces, configMaps *source.Watch) (*Controller, error) {
	c := &Controller{client: client, ca: string(ca), namespaces: namespaces.Objects(), configMaps: configMaps.Objects()}
	c.Reconciler = reconciler.New("root_ca_cert_publisher", 8, c.reconcile)
	if err := reconciler.OnNamespace(namespaces, c.Add); err != nil {
		return nil, fmt.Errorf("rootca: watch namespaces: %w", err)
	}
	if err := reconciler.OnChange(configMaps, func(obj metav1.Object) { c.Add(obj.GetNamespace()) }); err != nil {
		return nil, fmt.Errorf("rootca: watch config maps: %w", err)
	}
	return c, nil
}

func (c *Controller) reconcile(ctx context.Context, namespace string) (time.Duration, error) {
	if !reconciler.Active(c.namespaces, namespace) {
		return 0, nil
	}
	api := c.client.CoreV1().ConfigMaps(namespace)
	obj, exists, _ := c.configMaps.GetByKey(namespace + "/" + Name)
	if !exists {
		_, err := api.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: Name,
				Annotations: map[string]string{descriptionAnnotation: description}},
			Data: map[string]string{key: c.ca},
		}, metav1.CreateOptions{})
		if reconciler.Created(err, c.namespaces, namespace) {
			return 0, nil
		}
		return 0, fmt.Errorf("create config map %s/%s: %w", namespace, Name, err)
	}
	want := map[string]string{key: c.ca}
	if maps.Equal(obj.(*corev1.ConfigMap).Data, want) {
		return 0, nil
	}
	changed := obj.(*corev1.ConfigMap).DeepCopy()
	changed.Data = want
	// This controller may not read config maps: a newer version, or that it is gone, is in the watch before the next
	// attempt.
	if _, err := api.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return 0, fmt.Errorf("update config map %s/%s: %w", namespace, Name, err)
	}
	return 0, nil
}
