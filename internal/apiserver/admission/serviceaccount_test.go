package admission

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// An account can limit its pods to the secrets that it lists.
func TestMountableSecrets(t *testing.T) {
	world := usual()
	world["serviceaccounts"] = append(world["serviceaccounts"], &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "strict",
			Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": "true"}},
		Secrets:          []corev1.ObjectReference{{Name: "mine"}},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}})
	variable := func(secret string) []corev1.EnvVar {
		return []corev1.EnvVar{{Name: "V",
			ValueFrom: &corev1.EnvVarSource{
				SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: secret}}}}}
	}
	for _, c := range []struct {
		name   string
		change func(s *corev1.PodSpec)
		want   string
	}{
		{"its own", func(s *corev1.PodSpec) {
			s.Containers[0].Env = variable("mine")
			s.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "mine"}}}}
			s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		}, ""},
		{"variable", func(s *corev1.PodSpec) { s.Containers[0].Env = variable("other") },
			`envVar V referencing secret.secretName="other" is not allowed because service account strict`},
		{"variables", func(s *corev1.PodSpec) {
			s.Containers[0].EnvFrom = []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "other"}}}}
		}, `envFrom referencing secret.secretName="other"`},
		{"init container",
			func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{{Name: "i", Env: variable("other")}} },
			"init container i with envVar V"},
		{"volume", func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "other"}}}}
		}, `volume with secret.secretName="other"`},
		{"pull secret", func(s *corev1.PodSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}} },
			`imagePullSecrets[0].name="mine"`},
		{"another account",
			func(s *corev1.PodSpec) { s.ServiceAccountName = "default"; s.Containers[0].Env = variable("other") }, ""},
	} {
		p := newTestPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "strict"; c.change(&p.Spec) })
		if err := createPod(world, p); c.want == "" && err != nil || c.want != "" &&
			(!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for secret, refused := range map[string]bool{"mine": false, "other": true} {
		joined := newTestPod(func(p *corev1.Pod) {
			p.Spec.ServiceAccountName = "strict"
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Env: variable(secret)}}}
		})
		err := send(world, request{kind: "Pod", resource: "pods", sub: "ephemeralcontainers", namespace: "ns",
			name: "p", op: admission.Update, obj: joined, old: newTestPod(nil)})
		if apierrors.IsForbidden(err) != refused {
			t.Errorf("ephemeral container with %s: %v", secret, err)
		}
	}
}

// A pod changed by a webhook is checked again.
func TestAccountMustExist(t *testing.T) {
	for name, refused := range map[string]bool{"default": false, "nobody": true, "": true} {
		p := newTestPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = name })
		err := serviceAccount{usual()}.Validate(t.Context(), podAttributes(admission.Create, "ns", p, nil), nil)
		if apierrors.IsForbidden(err) != refused {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// L1.27
func TestSidecarSharesTheTokenVolume(t *testing.T) {
	p := newTestPod(nil)
	if err := createPod(usual(), p); err != nil {
		t.Fatal(err)
	}
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "sidecar", Image: "i"}) // by a webhook
	if err := createPod(usual(), p); err != nil {
		t.Fatal(err)
	}
	tokens := slices.DeleteFunc(slices.Clone(p.Spec.Volumes),
		func(v corev1.Volume) bool { return !strings.HasPrefix(v.Name, tokenVolumePrefix) })
	if last := p.Spec.Containers[len(p.Spec.Containers)-1]; len(tokens) != 1 || len(last.VolumeMounts) != 1 ||
		last.VolumeMounts[0].Name != tokens[0].Name {
		t.Errorf("volumes %v, mounts of the sidecar %v", p.Spec.Volumes, last.VolumeMounts)
	}
}
