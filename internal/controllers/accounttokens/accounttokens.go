// Package accounttokens fills Secrets of type kubernetes.io/service-account-token with a token of
// the service account they name, and removes them with the account or when they have been unused
// for a long time. The controller manager runs it; it must never change other Secrets or create
// one.
package accounttokens

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/reconciler"
)

// Signer creates the token of a service account for a Secret.
type Signer func(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error)

// Controller reconciles the Secrets that name a service account. Its key is namespace/name.
type Controller struct {
	*reconciler.Reconciler
	client kubernetes.Interface
	sign   Signer
	rootCA []byte

	mu sync.Mutex
	// accounts maps Secrets to the service accounts they name, by the keys of both.
	accounts map[string]string
}

// New returns a controller. rootCA, in PEM, is added to each Secret with the token.
func New(client kubernetes.Interface, inv *inventory.Inventory, sign Signer, rootCA []byte) *Controller {
	c := &Controller{client: client, sign: sign, rootCA: rootCA, accounts: map[string]string{}}
	c.Reconciler = reconciler.New("serviceaccount_tokens_secret", 2, c.reconcile)
	inv.AddReader(c)
	return c
}

var _ inventory.Reader = (*Controller)(nil)

// Changed implements inventory.Reader.
func (c *Controller) Changed(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	switch k.GroupResource() {
	case corev1.Resource("secrets"):
		account := o.Annotations[corev1.ServiceAccountNameKey]
		if account == "" {
			return
		}
		c.mu.Lock()
		c.accounts[o.Namespace+"/"+o.Name] = o.Namespace + "/" + account
		c.mu.Unlock()
		c.Add(o.Namespace + "/" + o.Name)
	case corev1.Resource("serviceaccounts"):
		c.account(o)
	}
}

// Gone implements inventory.Reader.
func (c *Controller) Gone(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	switch k.GroupResource() {
	case corev1.Resource("secrets"):
		if o.Annotations[corev1.ServiceAccountNameKey] != "" {
			c.Add(o.Namespace + "/" + o.Name)
		}
	case corev1.Resource("serviceaccounts"):
		c.account(o)
	}
}

// Relisted implements inventory.Reader.
func (c *Controller) Relisted(k inventory.Kind, objects []*metav1.PartialObjectMetadata) {
	for _, o := range objects {
		c.Changed(k, o)
	}
	if k.GroupResource() != corev1.Resource("serviceaccounts") && k.GroupResource() != corev1.Resource("secrets") {
		return
	}
	// Changes may have been missed.
	c.mu.Lock()
	defer c.mu.Unlock()
	for secret := range c.accounts {
		c.Add(secret)
	}
}

// Kinds implements inventory.Reader.
func (c *Controller) Kinds() {}

// account requeues the Secrets of a service account.
func (c *Controller) account(o *metav1.PartialObjectMetadata) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for secret, account := range c.accounts {
		if account == o.Namespace+"/"+o.Name {
			c.Add(secret)
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, _ := strings.Cut(key, "/")
	secret, err := c.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, c.forget(ctx, key)
	}
	if err != nil {
		return 0, fmt.Errorf("get secret %s: %w", key, err)
	}
	account := secret.Annotations[corev1.ServiceAccountNameKey]
	if secret.Type != corev1.SecretTypeServiceAccountToken || account == "" || secret.DeletionTimestamp != nil {
		return 0, nil
	}
	uid := secret.Annotations[corev1.ServiceAccountUIDKey]
	owner, err := c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, account, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && uid != "" && uid != string(owner.UID):
		klog.FromContext(ctx).V(2).Info("Removing the token of a deleted service account", "secret", key,
			"serviceAccount", account)
		err = c.client.CoreV1().Secrets(namespace).Delete(ctx, name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(secret.UID))})
		err = confirm.Ended(ctx, secret.UID, err, confirm.By(c.client.CoreV1().Secrets(namespace).Get, name))
		if err == nil {
			return 0, nil
		}
		return 0, fmt.Errorf("remove secret %s of a deleted service account: %w", key, err)
	case err != nil:
		return 0, fmt.Errorf("get service account %s of secret %s: %w", account, key, err)
	}
	return 0, c.fill(ctx, secret, owner)
}

// fill adds the missing data to the Secret.
func (c *Controller) fill(ctx context.Context, secret *corev1.Secret, account *corev1.ServiceAccount) error {
	have := secret.Data
	if len(have[corev1.ServiceAccountTokenKey]) > 0 && len(have[corev1.ServiceAccountNamespaceKey]) > 0 &&
		bytes.Equal(have[corev1.ServiceAccountRootCAKey], c.rootCA) {
		return nil
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[corev1.ServiceAccountRootCAKey] = c.rootCA
	if len(have[corev1.ServiceAccountNamespaceKey]) == 0 {
		secret.Data[corev1.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	}
	if len(have[corev1.ServiceAccountTokenKey]) == 0 {
		token, err := c.sign(account, secret)
		if err != nil {
			return err
		}
		secret.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	secret.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	_, err := c.client.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	err = confirm.Overtaken(ctx, secret, err, confirm.By(c.client.CoreV1().Secrets(secret.Namespace).Get, secret.Name))
	if err == nil {
		return nil
	}
	return fmt.Errorf("add a token to secret %s/%s: %w", secret.Namespace, secret.Name, err)
}

// forget removes a deleted Secret from the list in its service account.
func (c *Controller) forget(ctx context.Context, key string) error {
	c.mu.Lock()
	namespace, account, _ := strings.Cut(c.accounts[key], "/")
	c.mu.Unlock()
	if account == "" {
		return nil
	}
	_, name, _ := strings.Cut(key, "/")
	o, err := c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, account, metav1.GetOptions{})
	if err == nil {
		before := len(o.Secrets)
		o.Secrets = slices.DeleteFunc(o.Secrets, func(r corev1.ObjectReference) bool { return r.Name == name })
		if len(o.Secrets) < before {
			_, err = c.client.CoreV1().ServiceAccounts(namespace).Update(ctx, o, metav1.UpdateOptions{})
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove secret %s from service account %s: %w", key, account, err)
	}
	c.mu.Lock()
	delete(c.accounts, key)
	c.mu.Unlock()
	return nil
}
