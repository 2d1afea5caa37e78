package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/storage/names"

	"carob/internal/core/nodegraph"
)

const (
	defaultAccount = "default"
	// accountLimit is how long a pod waits for its namespace's default account, which a controller makes just after the
	// namespace (L1.27).
	accountLimit = 2 * time.Second

	tokenVolumePrefix = "kube-api-access-"
	tokenMountPath    = "/var/run/secrets/kubernetes.io/serviceaccount"
	rootCAConfigMap   = "kube-root-ca.crt"
)

// tokenSeconds is what the mounted token asks for: an hour and a mark by which the token service knows it (L1.27).
const tokenSeconds int64 = 60*60 + 7

// serviceAccount gives a pod its account, the account's pull secrets and a mounted token (L1.27, L1.38).
type serviceAccount struct{ reader Reader }

func (serviceAccount) Handles(op admission.Operation) bool { return op == admission.Create }

func (s serviceAccount) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	p := newPod(a)
	if p == nil || isMirror(p) {
		return nil
	}
	if p.Spec.ServiceAccountName == "" {
		p.Spec.ServiceAccountName = defaultAccount
	}
	p.Spec.DeprecatedServiceAccount = p.Spec.ServiceAccountName
	account, err := s.account(ctx, a.GetNamespace(), p.Spec.ServiceAccountName)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", a.GetNamespace(), p.Spec.ServiceAccountName, err))
	}
	if automount(p, account) {
		mountToken(p)
	}
	if len(p.Spec.ImagePullSecrets) == 0 {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, account.ImagePullSecrets...)
	}
	return nil
}

// account returns the account a pod names; only the default one is waited for.
func (s serviceAccount) account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	var limit time.Duration
	if name == defaultAccount {
		limit = accountLimit
	}
	obj, err := s.reader.Await(ctx, serviceAccounts, namespace, name, limit)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccount"), name) // singular, as users know the message
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

// automount: the pod's word counts more than the account's.
func automount(p *corev1.Pod, account *corev1.ServiceAccount) bool {
	switch {
	case p.Spec.AutomountServiceAccountToken != nil:
		return *p.Spec.AutomountServiceAccountToken
	case account.AutomountServiceAccountToken != nil:
		return *account.AutomountServiceAccountToken
	}
	return true
}

// mountToken mounts token, CA and namespace into every container that has nothing at that path.
func mountToken(p *corev1.Pod) {
	volume := names.SimpleNameGenerator.GenerateName(tokenVolumePrefix)
	mounted := false
	containers(p, func(c *corev1.Container) {
		for i := range c.VolumeMounts {
			if c.VolumeMounts[i].MountPath == tokenMountPath {
				return
			}
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, ReadOnly: true, MountPath: tokenMountPath})
		mounted = true
	})
	if !mounted {
		return
	}
	mode, seconds := corev1.ProjectedVolumeSourceDefaultMode, tokenSeconds
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCAConfigMap},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}}})
}

// Validate keeps a mirror pod from reaching credentials its node could not have checked (L1.38).
func (s serviceAccount) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	p := newPod(a)
	if p == nil || !isMirror(p) {
		return nil
	}
	if p.Spec.ServiceAccountName != "" {
		return admission.NewForbidden(a, errors.New("a mirror pod may not reference service accounts"))
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Projected == nil {
			continue
		}
		for _, src := range v.Projected.Sources {
			if src.ServiceAccountToken != nil {
				return admission.NewForbidden(a, errors.New("a mirror pod may not use ServiceAccountToken volume projections"))
			}
		}
	}
	if slices.ContainsFunc(nodegraph.Named(p), func(r nodegraph.Ref) bool { return r.Kind == nodegraph.Secret }) {
		return admission.NewForbidden(a, errors.New("a mirror pod may not reference secrets"))
	}
	return nil
}
