package node

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"carob/internal/node/credentials"
	"carob/internal/node/refs"
)

// credentialPlugins are those of the configuration, with what they need of the agent; nil: there are none.
func (m *machine) credentialPlugins(cfg *Config, objects *refs.Store) *credentials.Plugins {
	p := cfg.Credentials
	if p == nil {
		return nil
	}
	p.Accounts, p.Observed = accounts{m.client, objects}, m.meter.PluginRun
	return p
}

// nodeCredentials is the path of the node's docker configuration file (S13.8); empty: there is none.
func nodeCredentials(kubeletDir string) string {
	if kubeletDir == "" {
		return ""
	}
	return filepath.Join(kubeletDir, "config.json")
}

// accounts are the service accounts of pods on this node.
type accounts struct {
	client  kubernetes.Interface
	objects *refs.Store
}

func (a accounts) Account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return a.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (a accounts) Token(ctx context.Context, pod *corev1.Pod, audience string) (string, error) {
	stored, err := a.objects.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
				UID: pod.UID}}})
	if err != nil {
		return "", fmt.Errorf("request a token for %s: %w", audience, err)
	}
	return stored.Status.Token, nil
}
