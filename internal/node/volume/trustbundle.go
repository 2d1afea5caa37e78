package volume

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"carob/internal/node/spec"
)

// addTrustBundle adds the trust anchors that a projection selects, as one file.
// Optional bundles that are missing make an empty file.
func (m *Manager) addTrustBundle(ctx context.Context, out payload, pod *corev1.Pod,
	src *corev1.ClusterTrustBundleProjection, mode uint32) error {
	var bundles []*certificatesv1.ClusterTrustBundle
	var err error
	switch {
	case src.Name != nil:
		bundles, err = m.bundleByName(ctx, *src.Name)
	case src.SignerName != nil:
		bundles, err = m.bundlesOfSigner(ctx, *src.SignerName, src.LabelSelector)
	default:
		err = errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	}
	if err != nil && (!isMissing(err) || !isTrue(src.Optional)) {
		return err
	}
	anchors, err := trustAnchors(bundles)
	if err != nil {
		return err
	}
	return out.add(src.Path, private(pod, anchors, mode))
}

func (m *Manager) bundleByName(ctx context.Context, name string) ([]*certificatesv1.ClusterTrustBundle, error) {
	b, err := m.cfg.Objects.TrustBundle(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("while getting ClusterTrustBundle: %w",
			&spec.NotFoundError{Kind: "clustertrustbundle.certificates.k8s.io", Name: name})
	case err != nil:
		return nil, fmt.Errorf("while getting ClusterTrustBundle: %w", err)
	}
	return []*certificatesv1.ClusterTrustBundle{b}, nil
}

// bundlesOfSigner are those with the labels: no selector selects none, an empty one all.
func (m *Manager) bundlesOfSigner(ctx context.Context, signer string,
	selector *metav1.LabelSelector) ([]*certificatesv1.ClusterTrustBundle, error) {
	chosen, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("while parsing label selector: %w", err)
	}
	var bundles []*certificatesv1.ClusterTrustBundle
	if selector != nil {
		all, err := m.cfg.Objects.TrustBundles(ctx, signer)
		if err != nil {
			return nil, fmt.Errorf("while listing ClusterTrustBundles of signer %q: %w", signer, err)
		}
		for _, b := range all {
			if chosen.Matches(labels.Set(b.Labels)) {
				bundles = append(bundles, b)
			}
		}
	}
	if len(bundles) == 0 {
		return nil, errMissing("combination of signerName and labelSelector matched zero ClusterTrustBundles")
	}
	return bundles, nil
}

// trustAnchors are the certificates of the bundles, each once and in the order of their content: the file changes only
// if they do, and not with the order in the API's response.
func trustAnchors(bundles []*certificatesv1.ClusterTrustBundle) ([]byte, error) {
	var anchors [][]byte
	for _, b := range bundles {
		rest := []byte(b.Spec.TrustBundle)
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if _, err := x509.ParseCertificate(block.Bytes); err != nil {
				return nil, fmt.Errorf("ClusterTrustBundle %q contains something that is not a certificate: %w", b.Name, err)
			}
			anchors = append(anchors, block.Bytes)
		}
	}
	slices.SortFunc(anchors, bytes.Compare)
	anchors = slices.CompactFunc(anchors, bytes.Equal)
	text := []byte{}
	for _, der := range anchors {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return text, nil
}
