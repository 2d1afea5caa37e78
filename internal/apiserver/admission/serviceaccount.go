package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/storage/names"

	"carob/internal/core/nodegraph"
)

const (
	defaultAccount = "default"
	// accountLimit is how long a pod waits for its namespace's default account, which a controller
	// creates just after the namespace (L1.27).
	accountLimit = 2 * time.Second

	tokenVolumePrefix = "kube-api-access-"
	tokenMountPath    = "/var/run/secrets/kubernetes.io/serviceaccount"
	rootCAConfigMap   = "kube-root-ca.crt"
)

// tokenSeconds is the lifetime that the mounted token requests: an hour, and seven seconds by which
// the token service recognizes it (L1.27).
const tokenSeconds int64 = 60*60 + 7

// serviceAccount sets a pod's account, its pull secrets, and a mounted token (L1.27, L1.38).
type serviceAccount struct{ reader Reader }

func (serviceAccount) Handles(op admission.Operation) bool {
	return on{create: true, update: true}.handles(op)
}

func (s serviceAccount) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	p := newPod(a)
	switch {
	case p == nil:
		return nil
	case isMirror(p):
		return mirrored(a, p)
	}
	if p.Spec.ServiceAccountName == "" {
		p.Spec.ServiceAccountName = defaultAccount
	}
	p.Spec.DeprecatedServiceAccount = p.Spec.ServiceAccountName
	account, err := s.account(ctx, a.GetNamespace(), p.Spec.ServiceAccountName)
	if err != nil {
		return admission.NewForbidden(a,
			fmt.Errorf("error looking up service account %s/%s: %w", a.GetNamespace(), p.Spec.ServiceAccountName, err))
	}
	if automount(p, account) {
		mountToken(p)
	}
	if len(p.Spec.ImagePullSecrets) == 0 {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, account.ImagePullSecrets...)
	}
	return nil
}

// account returns the account that a pod names; it waits only for the default one.
func (s serviceAccount) account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	var limit time.Duration
	if name == defaultAccount {
		limit = accountLimit
	}
	obj, err := s.reader.Await(ctx, serviceAccounts, namespace, name, limit)
	if apierrors.IsNotFound(err) {
		// singular, as in upstream's message
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccount"), name)
	}
	if err != nil {
		return nil, err
	}
	account, ok := obj.(*corev1.ServiceAccount)
	if !ok {
		return nil, fmt.Errorf("unexpected object %T", obj)
	}
	return account, nil
}

// automount: the pod's field has precedence over the account's.
func automount(p *corev1.Pod, account *corev1.ServiceAccount) bool {
	switch {
	case p.Spec.AutomountServiceAccountToken != nil:
		return *p.Spec.AutomountServiceAccountToken
	case account.AutomountServiceAccountToken != nil:
		return *account.AutomountServiceAccountToken
	}
	return true
}

// mountToken mounts token, CA, and namespace into every container that has nothing mounted at that
// path. A container added by a webhook gets the same volume as the others.
func mountToken(p *corev1.Pod) {
	volume := ""
	if i := slices.IndexFunc(p.Spec.Volumes,
		func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, tokenVolumePrefix) }); i >= 0 {
		volume = p.Spec.Volumes[i].Name
	}
	there := volume != ""
	if !there {
		volume = names.SimpleNameGenerator.GenerateName(tokenVolumePrefix)
	}
	mounted := false
	containers(p, func(c *corev1.Container) {
		for i := range c.VolumeMounts {
			if c.VolumeMounts[i].MountPath == tokenMountPath {
				return
			}
		}
		c.VolumeMounts = append(c.VolumeMounts,
			corev1.VolumeMount{Name: volume, ReadOnly: true, MountPath: tokenMountPath})
		mounted = true
	})
	if !mounted || there {
		return
	}
	mode, seconds := corev1.ProjectedVolumeSourceDefaultMode, tokenSeconds
	p.Spec.Volumes = append(p.Spec.Volumes,
		corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: &mode,
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token",
					ExpirationSeconds: &seconds}},
				{ConfigMap: &corev1.ConfigMapProjection{
					LocalObjectReference: corev1.LocalObjectReference{Name: rootCAConfigMap},
					Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
				}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
					{Path: "namespace",
						FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
				}}},
			},
		}}})
}

// Validate checks the resulting pod: its account exists, and it uses no secret that the account
// does not allow. A mirror pod uses no credentials, because its node could not have checked them
// (L1.38).
func (s serviceAccount) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	limit := limitSecrets
	p, _ := a.GetObject().(*corev1.Pod)
	switch ephemeral := a.GetSubresource() == "ephemeralcontainers"; {
	case p == nil || a.GetResource().GroupResource() != podResource:
		return nil
	case ephemeral && a.GetOperation() == admission.Update:
		limit = limitEphemeral
	case newPod(a) == nil:
		return nil
	case isMirror(p):
		return mirrored(a, p)
	}
	if p.Spec.ServiceAccountName == "" {
		return admission.NewForbidden(a,
			fmt.Errorf("no service account specified for pod %s/%s", a.GetNamespace(), p.Name))
	}
	account, err := s.account(ctx, a.GetNamespace(), p.Spec.ServiceAccountName)
	if err != nil {
		return admission.NewForbidden(a,
			fmt.Errorf("error looking up service account %s/%s: %w", a.GetNamespace(), p.Spec.ServiceAccountName, err))
	}
	if limitsSecrets(account) {
		if err := limit(account, p); err != nil {
			return admission.NewForbidden(a, err)
		}
	}
	return nil
}

func mirrored(a admission.Attributes, p *corev1.Pod) error {
	if p.Spec.ServiceAccountName != "" {
		return admission.NewForbidden(a, errors.New("a mirror pod may not reference service accounts"))
	}
	for i := range p.Spec.Volumes {
		if v := p.Spec.Volumes[i].Projected; v != nil &&
			slices.ContainsFunc(v.Sources,
				func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil }) {
			return admission.NewForbidden(a,
				errors.New("a mirror pod may not use ServiceAccountToken volume projections"))
		}
	}
	if slices.ContainsFunc(nodegraph.Named(p), func(r nodegraph.Ref) bool { return r.Kind == nodegraph.Secret }) {
		return admission.NewForbidden(a, errors.New("a mirror pod may not reference secrets"))
	}
	return nil
}
