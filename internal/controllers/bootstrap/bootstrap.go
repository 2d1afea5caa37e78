// Package bootstrap manages bootstrap tokens: it removes expired tokens, and signs the ConfigMap
// cluster-info with each token, so that a joining machine with a token can verify its content. The
// controller manager runs both controllers; they must never create a token.
package bootstrap

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/util/secrets"
	"k8s.io/klog/v2"

	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/reconciler"
)

// Controller is the cleaner or the signer.
type Controller struct {
	*reconciler.Reconciler
	// key returns the key to reconcile when an object has changed; "" for none.
	key func(k inventory.Kind, o *metav1.PartialObjectMetadata) string
}

// NewCleaner returns a controller that removes expired tokens. Its key is a Secret's name.
func NewCleaner(client kubernetes.Interface, inv *inventory.Inventory) *Controller {
	c := &Controller{key: func(k inventory.Kind, o *metav1.PartialObjectMetadata) string {
		if isToken(k, o) {
			return o.Name
		}
		return ""
	}}
	c.Reconciler = reconciler.New("token_cleaner", 1,
		func(ctx context.Context, name string) (time.Duration, error) { return clean(ctx, client, name) })
	inv.AddReader(c)
	return c
}

// NewSigner returns a controller that signs cluster-info. It has one key.
func NewSigner(client kubernetes.Interface, inv *inventory.Inventory) *Controller {
	c := &Controller{key: func(k inventory.Kind, o *metav1.PartialObjectMetadata) string {
		if isToken(k, o) || k.GroupResource() == corev1.Resource("configmaps") &&
			o.Namespace == metav1.NamespacePublic && o.Name == bootstrapapi.ConfigMapClusterInfo {
			return bootstrapapi.ConfigMapClusterInfo
		}
		return ""
	}}
	c.Reconciler = reconciler.New("bootstrap_signer_queue", 1,
		func(ctx context.Context, _ string) (time.Duration, error) { return sign(ctx, client) })
	inv.AddReader(c)
	return c
}

func isToken(k inventory.Kind, o *metav1.PartialObjectMetadata) bool {
	return k.GroupResource() == corev1.Resource("secrets") && o.Namespace == metav1.NamespaceSystem &&
		strings.HasPrefix(o.Name, bootstrapapi.BootstrapTokenSecretPrefix)
}

var _ inventory.Reader = (*Controller)(nil)

// Changed implements inventory.Reader.
func (c *Controller) Changed(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	if key := c.key(k, o); key != "" {
		c.Add(key)
	}
}

// Gone implements inventory.Reader.
func (c *Controller) Gone(k inventory.Kind, o *metav1.PartialObjectMetadata) { c.Changed(k, o) }

// Relisted implements inventory.Reader.
func (c *Controller) Relisted(k inventory.Kind, objects []*metav1.PartialObjectMetadata) {
	for _, o := range objects {
		c.Changed(k, o)
	}
}

// Kinds implements inventory.Reader.
func (c *Controller) Kinds() {}

// clean removes the token if it has expired, otherwise it returns when it expires.
func clean(ctx context.Context, client kubernetes.Interface, name string) (time.Duration, error) {
	s, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && s.Type != bootstrapapi.SecretTypeBootstrapToken:
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("get bootstrap token %s: %w", name, err)
	}
	left, expired := secrets.GetExpiration(s, time.Now())
	if !expired {
		return left, nil
	}
	klog.FromContext(ctx).V(2).Info("Removing an expired bootstrap token", "secret", klog.KObj(s))
	err = client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}})
	err = confirm.Ended(ctx, s.UID, err, confirm.By(client.CoreV1().Secrets(metav1.NamespaceSystem).Get, name))
	if err == nil {
		return 0, nil
	}
	return 0, fmt.Errorf("remove bootstrap token %s: %w", name, err)
}

// sign adds to cluster-info, if it exists, exactly the signatures of the existing tokens for
// signing. It returns when the next of them expires.
func sign(ctx context.Context, client kubernetes.Interface) (time.Duration, error) {
	info, err := client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("get config map cluster-info: %w", err)
	}
	content, ok := info.Data[bootstrapapi.KubeConfigKey]
	if !ok {
		return 0, nil
	}
	tokens, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type",
			string(bootstrapapi.SecretTypeBootstrapToken)).String()})
	if err != nil {
		return 0, fmt.Errorf("list bootstrap tokens: %w", err)
	}
	want := maps.Clone(info.Data)
	maps.DeleteFunc(want, func(k, _ string) bool { return strings.HasPrefix(k, bootstrapapi.JWSSignatureKeyPrefix) })
	next := time.Duration(0)
	for i := range tokens.Items {
		s := &tokens.Items[i]
		id, password, ok := forSigning(s)
		if !ok {
			continue
		}
		left, expired := secrets.GetExpiration(s, time.Now())
		if expired {
			continue
		}
		if left > 0 && (next == 0 || left < next) {
			next = left
		}
		if want[bootstrapapi.JWSSignatureKeyPrefix+id], err = detached(content, id, password); err != nil {
			return 0, err
		}
	}
	if maps.Equal(want, info.Data) {
		return next, nil
	}
	info.Data = want
	_, err = client.CoreV1().ConfigMaps(info.Namespace).Update(ctx, info, metav1.UpdateOptions{})
	err = confirm.Overtaken(ctx, info, err, confirm.By(client.CoreV1().ConfigMaps(info.Namespace).Get, info.Name))
	if err != nil {
		return 0, fmt.Errorf("sign config map cluster-info: %w", err)
	}
	return next, nil
}

// forSigning returns the token in a Secret if it may be used for signing.
func forSigning(s *corev1.Secret) (id, password string, ok bool) {
	name, ok := secrets.ParseName(s.Name)
	id, password = secrets.GetData(s, bootstrapapi.BootstrapTokenIDKey),
		secrets.GetData(s, bootstrapapi.BootstrapTokenSecretKey)
	return id, password, ok && s.Type == bootstrapapi.SecretTypeBootstrapToken && s.DeletionTimestamp == nil &&
		id == name && password != "" && secrets.GetData(s, bootstrapapi.BootstrapTokenUsageSigningKey) == "true"
}

// detached returns a JSON web signature (RFC 7515, compact, HS256) with detached content (appendix
// F).
func detached(content, id, password string) (string, error) {
	header, err := json.Marshal(map[string]string{"alg": jwt.SigningMethodHS256.Alg(), "kid": id})
	if err != nil {
		return "", fmt.Errorf("sign cluster-info: %w", err)
	}
	enc := base64.RawURLEncoding
	head := enc.EncodeToString(header)
	signature, err := jwt.SigningMethodHS256.Sign(head+"."+enc.EncodeToString([]byte(content)), []byte(password))
	if err != nil {
		return "", fmt.Errorf("sign cluster-info: %w", err)
	}
	return head + ".." + enc.EncodeToString(signature), nil
}
