package admission

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// limitsSecrets reports whether pods of the account may use only the secrets that it lists.
func limitsSecrets(a *corev1.ServiceAccount) bool {
	limited, err := strconv.ParseBool(a.Annotations["kubernetes.io/enforce-mountable-secrets"])
	return err == nil && limited
}

// limitSecrets rejects a pod that uses a secret which its account does not list.
func limitSecrets(a *corev1.ServiceAccount, p *corev1.Pod) error {
	for i := range p.Spec.Volumes {
		if s := p.Spec.Volumes[i].Secret; s != nil && !lists(a, s.SecretName) {
			return fmt.Errorf(
				"volume with secret.secretName=%q is not allowed because service account %s does not reference that secret", s.SecretName, a.Name)
		}
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if err := limitEnvironment(a, "init container "+c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if err := limitEnvironment(a, "container "+c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for i, s := range p.Spec.ImagePullSecrets {
		if !slices.Contains(a.ImagePullSecrets, s) {
			return fmt.Errorf(
				"imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret", i, s.Name, a.Name)
		}
	}
	return nil
}

// limitEphemeral does the same for containers that are added later.
func limitEphemeral(a *corev1.ServiceAccount, p *corev1.Pod) error {
	for i := range p.Spec.EphemeralContainers {
		c := &p.Spec.EphemeralContainers[i]
		if err := limitEnvironment(a, "ephemeral container "+c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	return nil
}

func limitEnvironment(a *corev1.ServiceAccount, who string, vars []corev1.EnvVar, from []corev1.EnvFromSource) error {
	for _, v := range vars {
		if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil && !lists(a, v.ValueFrom.SecretKeyRef.Name) {
			return fmt.Errorf(
				"%s with envVar %s referencing secret.secretName=%q is not allowed because service account %s does not reference that secret", who, v.Name, v.ValueFrom.SecretKeyRef.Name, a.Name)
		}
	}
	for _, f := range from {
		if f.SecretRef != nil && !lists(a, f.SecretRef.Name) {
			return fmt.Errorf(
				"%s with envFrom referencing secret.secretName=%q is not allowed because service account %s does not reference that secret", who, f.SecretRef.Name, a.Name)
		}
	}
	return nil
}

func lists(a *corev1.ServiceAccount, secret string) bool {
	return slices.ContainsFunc(a.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret })
}
