package accounttokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/reconciler"
	"carob/internal/core/nodegraph"
)

const (
	// Labels with dates on a token Secret: the API server sets the first when the token is used,
	// and rejects tokens that have the second.
	labelLastUsed     = "kubernetes.io/legacy-token-last-used"
	labelInvalidSince = "kubernetes.io/legacy-token-invalid-since"
	// The ConfigMap in kube-system with the date since which the API server has recorded the use of
	// tokens.
	trackingName  = "kube-apiserver-legacy-service-account-token-tracking"
	trackingSince = "since"

	unusedFor  = 365 * 24 * time.Hour // upstream's default
	lookEvery  = 24 * time.Hour       // as upstream
	unusedName = "legacy-service-account-token-cleaner"
)

// verdict is the decision about a Secret.
type verdict int

const (
	keep verdict = iota
	invalidate
	remove
)

// Unused invalidates tokens that an old controller created for a service account and that have not
// been used for a year, and removes them after another year without use. It has one key.
type Unused struct{ *reconciler.Reconciler }

// NewUnused returns a controller that reads with reader and writes with client.
func NewUnused(reader, client kubernetes.Interface, inv *inventory.Inventory) *Unused {
	u := &Unused{reconciler.New(unusedName, 1, func(ctx context.Context, _ string) (time.Duration, error) {
		return lookEvery, cleanUnused(ctx, reader, client, time.Now())
	})}
	inv.AddReader(u)
	return u
}

// Changed implements inventory.Reader.
func (u *Unused) Changed(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	if k.GroupResource() == corev1.Resource("configmaps") && o.Namespace == metav1.NamespaceSystem &&
		o.Name == trackingName {
		u.Add(unusedName)
	}
}

// Gone implements inventory.Reader.
func (u *Unused) Gone(inventory.Kind, *metav1.PartialObjectMetadata) {}

// Relisted implements inventory.Reader.
func (u *Unused) Relisted(k inventory.Kind, objects []*metav1.PartialObjectMetadata) {
	for _, o := range objects {
		u.Changed(k, o)
	}
}

// Kinds implements inventory.Reader.
func (u *Unused) Kinds() {}

func cleanUnused(ctx context.Context, reader, client kubernetes.Interface, now time.Time) error {
	m, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, trackingName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get config map %s: %w", trackingName, err)
	}
	since, err := time.Parse(time.DateOnly, m.Data[trackingSince])
	// The day on which recording began does not count.
	if err != nil || now.Before(since.AddDate(0, 0, 1).Add(unusedFor)) {
		return nil //nolint:nilerr // the API server repairs the date, which requeues the key
	}
	secrets, err := reader.CoreV1().Secrets("").List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type",
			string(corev1.SecretTypeServiceAccountToken)).String()})
	if err != nil {
		return fmt.Errorf("list tokens of service accounts: %w", err)
	}
	var refused []error
	named := map[string]map[nodegraph.Ref]bool{} // used by pods, by namespace
	for i := range secrets.Items {
		s := &secrets.Items[i]
		if decide(s, now) == keep {
			continue
		}
		account, err := reader.CoreV1().ServiceAccounts(s.Namespace).Get(ctx,
			s.Annotations[corev1.ServiceAccountNameKey], metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue // another client is removing it
		}
		if err != nil {
			return fmt.Errorf("get service account of secret %s/%s: %w", s.Namespace, s.Name, err)
		}
		if uid := s.Annotations[corev1.ServiceAccountUIDKey]; uid != "" && uid != string(account.UID) ||
			!slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == s.Name }) {
			continue // created manually
		}
		if named[s.Namespace] == nil {
			if named[s.Namespace], err = namedByPods(ctx, reader, s.Namespace); err != nil {
				return err
			}
		}
		if named[s.Namespace][nodegraph.Ref{Kind: nodegraph.Secret, Namespace: s.Namespace, Name: s.Name}] {
			continue
		}
		if err := carryOut(ctx, reader, client, s, decide(s, now), now); err != nil {
			refused = append(refused, err) // a webhook may refuse this one for ever
		}
	}
	return errors.Join(refused...)
}

// decide returns the decision about a Secret that a controller created for its service account and
// that no pod uses.
func decide(s *corev1.Secret, now time.Time) verdict {
	begin := now.Add(-unusedFor)
	day := begin.UTC().Format(time.DateOnly)
	if s.Type != corev1.SecretTypeServiceAccountToken || s.Annotations[corev1.ServiceAccountNameKey] == "" ||
		s.DeletionTimestamp != nil || !s.CreationTimestamp.Time.Before(begin) {
		return keep
	}
	if used, ok := s.Labels[labelLastUsed]; ok {
		if _, err := time.Parse(time.DateOnly, used); err != nil || used >= day {
			return keep
		}
	}
	since := s.Labels[labelInvalidSince]
	if _, err := time.Parse(time.DateOnly, since); err != nil {
		return invalidate
	}
	if since >= day {
		return keep
	}
	return remove
}

func namedByPods(ctx context.Context, reader kubernetes.Interface, namespace string) (map[nodegraph.Ref]bool, error) {
	pods, err := reader.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
	}
	out := map[nodegraph.Ref]bool{}
	for i := range pods.Items {
		for _, r := range nodegraph.Named(&pods.Items[i]) {
			out[r] = true
		}
	}
	return out, nil
}

func carryOut(ctx context.Context, reader, client kubernetes.Interface, s *corev1.Secret, v verdict,
	now time.Time) (err error) {
	log := klog.FromContext(ctx).WithValues("secret", klog.KObj(s))
	switch v {
	case keep:
		return nil
	case invalidate:
		log.Info("Invalidating a service account token that has not been used for a year", "lastUsed",
			s.Labels[labelLastUsed])
		patch, merr := json.Marshal(map[string]any{"metadata": map[string]any{"uid": s.UID,
			"labels": map[string]string{labelInvalidSince: now.UTC().Format(time.DateOnly)}}})
		if merr != nil {
			return merr
		}
		_, err = client.CoreV1().Secrets(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch,
			metav1.PatchOptions{})
	case remove:
		log.Info("Removing an invalidated service account token that has not been used for a year", "lastUsed",
			s.Labels[labelLastUsed], "invalidSince", s.Labels[labelInvalidSince])
		err = client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID,
				ResourceVersion: &s.ResourceVersion}})
	}
	err = confirm.Overtaken(ctx, s, err, confirm.By(reader.CoreV1().Secrets(s.Namespace).Get, s.Name))
	if err == nil {
		return nil // or the token has been used meanwhile
	}
	return fmt.Errorf("remove the unused token %s/%s: %w", s.Namespace, s.Name, err)
}
