package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// keys returns the credentials for a normalized image name in the order in which they are tried: from the pod's
// secrets, the node's configuration file, the plugins (S13.8). It also returns the names of missing secrets.
func (m *Manager) keys(ctx context.Context, pod *corev1.Pod, name string) (keys []*key, missing []string) {
	ring, missing := m.keyring(ctx, pod)
	keys = ring.lookup(name)
	own, err := m.nodeKeys()
	if err != nil {
		klog.FromContext(ctx).Error(err, "The registry credentials of the node cannot be read", "file", m.cfg.NodeConfig)
	}
	keys = append(keys, own.lookup(name)...)
	if m.cfg.Plugins == nil {
		return keys, missing
	}
	for _, c := range m.cfg.Plugins.For(ctx, pod, repository(name)) {
		host, _, _ := strings.Cut(name, "/")
		k := &key{everybody: true,
			auth: &cri.AuthConfig{Username: c.Username, Password: c.Password, ServerAddress: host}}
		if c.Account != nil {
			k.from, k.everybody = accountCredential(*c.Account, c.UID), false
		}
		keys = append(keys, k)
	}
	return keys, missing
}

// nodeKeys reads the node's configuration file each time: credential helpers renew it.
func (m *Manager) nodeKeys() (ring keyring, err error) {
	if m.cfg.NodeConfig == "" {
		return ring, nil
	}
	text, err := os.ReadFile(m.cfg.NodeConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return ring, nil
	}
	if err != nil {
		return ring, fmt.Errorf("read registry credentials: %w", err)
	}
	err = ring.addFiles(m.cfg.NodeConfig, map[string][]byte{corev1.DockerConfigJsonKey: text}, credential{}, true)
	return ring, err
}

// accountOf is the credential of the pod's service account, for images to which a plugin gave it access.
func (m *Manager) accountOf(ctx context.Context, pod *corev1.Pod) []credential {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}
	if m.cfg.Plugins == nil || m.cfg.Plugins.Accounts == nil || name.Name == "" {
		return nil
	}
	account, err := m.cfg.Plugins.Accounts.Account(ctx, name.Namespace, name.Name)
	if err != nil {
		return nil // the image counts as absent, and is pulled
	}
	return []credential{accountCredential(name, account.UID)}
}

// accountCredential is the record of a service account. A secret's name has no colon.
func accountCredential(name types.NamespacedName, uid types.UID) credential {
	sum := sha256.Sum256([]byte("serviceaccount:" + name.String() + ":" + string(uid)))
	return credential{Namespace: name.Namespace, Name: "serviceaccount:" + name.Name, UID: uid,
		Hash: hex.EncodeToString(sum[:])}
}

// keyring reads the pull secrets of the pod; missing ones are named.
func (m *Manager) keyring(ctx context.Context, pod *corev1.Pod) (ring keyring, missing []string) {
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := m.cfg.Secrets.Secret(ctx, pod.Namespace, ref.Name)
		if err == nil {
			err = ring.add(secret)
		}
		if err != nil {
			if apierrors.IsNotFound(err) || ctx.Err() == nil {
				missing = append(missing, ref.Name)
			}
		}
	}
	return ring, missing
}
