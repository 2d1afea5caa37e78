package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"carob/internal/node/spec"
)

// file is one file of a volume whose content the agent writes.
type file struct {
	data []byte
	mode uint32 // permission bits
	uid  int    // owner; 0 is the agent's own user
}

// payload is the content of such a volume by relative path.
type payload map[string]file

// errMissing means that something that the pod refers to does not exist: a key of an object, or
// any trust bundle.
type errMissing string

func (e errMissing) Error() string { return string(e) }

// isMissing reports whether err means that a referenced object or key does not exist (yet).
func isMissing(err error) bool {
	var notFound *spec.NotFoundError
	var missing errMissing
	return errors.As(err, &notFound) || errors.As(err, &missing)
}

// render computes the content of a configMap, secret, downwardAPI or projected volume.
func (m *Manager) render(ctx context.Context, p *podVolumes, v *corev1.Volume) (payload, error) {
	pod, out := p.pod, make(payload)
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		return out, m.addConfigMap(ctx, out, pod, s.Name, s.Items, s.Optional, modeOf(s.DefaultMode))
	case v.Secret != nil:
		s := v.Secret
		return out, m.addSecret(ctx, out, pod, s.SecretName, s.Items, s.Optional, modeOf(s.DefaultMode))
	case v.DownwardAPI != nil:
		return out, m.addDownward(out, pod, v.DownwardAPI.Items, modeOf(v.DownwardAPI.DefaultMode))
	}
	mode := modeOf(v.Projected.DefaultMode)
	for i := range v.Projected.Sources {
		if err := m.addProjection(ctx, out, p, v, i, mode); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *Manager) addProjection(ctx context.Context, out payload, p *podVolumes, v *corev1.Volume, index int,
	mode uint32) error {
	src := &v.Projected.Sources[index]
	switch {
	case src.ConfigMap != nil:
		return m.addConfigMap(ctx, out, p.pod, src.ConfigMap.Name, src.ConfigMap.Items, src.ConfigMap.Optional, mode)
	case src.Secret != nil:
		return m.addSecret(ctx, out, p.pod, src.Secret.Name, src.Secret.Items, src.Secret.Optional, mode)
	case src.DownwardAPI != nil:
		return m.addDownward(out, p.pod, src.DownwardAPI.Items, mode)
	case src.ServiceAccountToken != nil:
		return m.addToken(ctx, out, p, v.Name, src.ServiceAccountToken, mode)
	case src.ClusterTrustBundle != nil:
		return m.addTrustBundle(ctx, out, p.pod, src.ClusterTrustBundle, mode)
	case src.PodCertificate != nil:
		return m.addCertificate(ctx, out, p, v.Name, index, src.PodCertificate, mode)
	}
	return nil
}

func (m *Manager) addConfigMap(ctx context.Context, out payload, pod *corev1.Pod, name string, items []corev1.KeyToPath,
	optional *bool, mode uint32) error {
	cm, err := m.cfg.Objects.ConfigMap(ctx, pod.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && isTrue(optional):
		return nil
	case apierrors.IsNotFound(err):
		return &spec.NotFoundError{Kind: "configmap", Name: name}
	case err != nil:
		return fmt.Errorf("reading configmap %s/%s: %w", pod.Namespace, name, err)
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	maps.Copy(data, cm.BinaryData)
	return addKeys(out, data, items, isTrue(optional), mode, "configmap references non-existent config key: ")
}

func (m *Manager) addSecret(ctx context.Context, out payload, pod *corev1.Pod, name string, items []corev1.KeyToPath,
	optional *bool, mode uint32) error {
	s, err := m.cfg.Objects.Secret(ctx, pod.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && isTrue(optional):
		return nil
	case apierrors.IsNotFound(err):
		return &spec.NotFoundError{Kind: "secret", Name: name}
	case err != nil:
		return fmt.Errorf("reading secret %s/%s: %w", pod.Namespace, name, err)
	}
	return addKeys(out, s.Data, items, isTrue(optional), mode, "references non-existent secret key: ")
}

// addKeys adds all keys, or the selected ones under their paths.
func addKeys(out payload, data map[string][]byte, items []corev1.KeyToPath, optional bool, mode uint32,
	missing string) error {
	if len(items) == 0 {
		for k, v := range data {
			out[k] = file{data: v, mode: mode}
		}
		return nil
	}
	for _, item := range items {
		content, ok := data[item.Key]
		if !ok {
			if optional {
				continue
			}
			return errMissing(missing + item.Key) // L10.29
		}
		if err := out.add(item.Path, file{data: content, mode: modeOr(item.Mode, mode)}); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) addDownward(out payload, pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, mode uint32) error {
	node := m.cfg.Node()
	for i := range items {
		item := &items[i]
		var text string
		var err error
		switch {
		case item.FieldRef != nil:
			text, err = spec.Field(pod, node, nil, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			text, err = spec.ResourceField(pod, nil, node, item.ResourceFieldRef)
		}
		if err == nil {
			err = out.add(item.Path, file{data: []byte(text), mode: modeOr(item.Mode, mode)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add refuses paths that leave the volume; the API server does so, too.
func (p payload) add(path string, f file) error {
	clean := filepath.Clean(path)
	if !filepath.IsLocal(clean) || clean == "." || len(clean) >= 2 && clean[:2] == ".." {
		return fmt.Errorf("invalid path %q: it must be relative and must not contain '..'", path)
	}
	p[clean] = f
	return nil
}

const defaultMode = 0o644

func modeOf(mode *int32) uint32 { return modeOr(mode, defaultMode) }

func modeOr(mode *int32, otherwise uint32) uint32 {
	if mode == nil {
		return otherwise
	}
	return uint32(*mode) & 0o777
}

func isTrue(b *bool) bool { return b != nil && *b }

// isWritten reports whether the agent writes the content of the volume.
func isWritten(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}
