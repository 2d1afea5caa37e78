package volume

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxRenewJitter spreads the renewals of certificates that were issued together. A signer
// leaves 10 minutes at least between beginRefreshAt and the end of a certificate.
const maxRenewJitter = 5 * time.Minute

// renewOverdue is how long after its renewal was due a certificate gets an event.
const renewOverdue = 10 * time.Minute

// errNotIssued means that the signer has not responded yet.
var errNotIssued = errors.New("credential bundle is not issued yet")

// certificate is the state of a podCertificate projection.
//
//	requested ──Issued──▶ in force ──renew──▶ in force and requested ──Issued──▶ in force
//	    └─Denied, Failed──▶ refused ◀──Denied, Failed──┘
type certificate struct {
	key, chain []byte    // PEM; empty: none was issued yet
	renew      time.Time // zero with an empty chain
	expires    time.Time
	retry      time.Time // after a failed renewal; zero: none failed
	warned     time.Time // when an event last reported overdue or expires

	request string // name of the PodCertificateRequest in progress; empty: none
	nextKey []byte // the key it is for
	refused error  // permanently: the pod gets no further certificate
}

// addCertificate adds the certificate of the projection sources[index] of a volume, and requests
// one if there is none or the old one is due.
func (m *Manager) addCertificate(ctx context.Context, out payload, p *podVolumes, volume string, index int,
	src *corev1.PodCertificateProjection, mode uint32) error {
	id := volume + "/" + strconv.Itoa(index)
	c := p.certificates[id]
	if c == nil {
		c = &certificate{}
		c.load(m.writtenDir(p.uid, volume), src)
		p.certificates[id] = c
	}
	err := m.advance(ctx, p.pod, c, src)
	if len(c.chain) == 0 {
		if err == nil {
			err = errNotIssued
		}
		return err
	}
	c.retry = time.Time{}
	if err != nil { // the old one stays
		c.retry = time.Now().Add(tokenRetry)
		m.cfg.Logger.Error(err, "Renewing a pod certificate failed; the old one stays", "pod", p.pod.Name, "namespace",
			p.pod.Namespace, "expires", c.expires)
	}
	m.warn(p.pod, c)
	for path, data := range map[string][]byte{
		src.CredentialBundlePath: append(append([]byte(nil), c.key...), c.chain...),
		src.KeyPath:              c.key,
		src.CertificateChainPath: c.chain,
	} {
		if path == "" {
			continue
		}
		if err := out.add(path, private(p.pod, data, mode)); err != nil {
			return err
		}
	}
	return nil
}

// advance handles the response to a request, or makes the request that is due.
func (m *Manager) advance(ctx context.Context, pod *corev1.Pod, c *certificate,
	src *corev1.PodCertificateProjection) error {
	if err := m.poll(ctx, pod, c); err != nil {
		return fmt.Errorf("while getting PodCertificateRequest %q: %w", pod.Namespace+"/"+c.request, err)
	}
	switch {
	case c.refused != nil && len(c.chain) == 0:
		return c.refused
	case c.refused != nil, c.request != "", len(c.chain) > 0 && time.Now().Before(c.renew):
		return nil //nolint:nilerr // the certificate that is there goes on being used
	}
	key, csr, err := newKeyAndProof(src.KeyType)
	if err != nil {
		return fmt.Errorf("while generating keypair: %w", err)
	}
	name, err := m.cfg.Certificates.RequestCertificate(ctx, pod, src, csr)
	if err != nil {
		return fmt.Errorf("while creating PodCertificateRequest: %w", err)
	}
	c.request, c.nextKey = name, key
	return nil
}

// poll checks the request in progress.
func (m *Manager) poll(ctx context.Context, pod *corev1.Pod, c *certificate) error {
	if c.request == "" {
		return nil
	}
	req, err := m.cfg.Certificates.CertificateRequest(ctx, pod, c.request)
	switch {
	case err == nil:
		m.answered(pod, c, req)
	case apierrors.IsNotFound(err): // it was deleted
		c.request, c.nextKey, err = "", nil, nil
	}
	return err
}

// answered handles the signer's response, if there is one.
func (m *Manager) answered(pod *corev1.Pod, c *certificate, req *certificatesv1.PodCertificateRequest) {
	for _, cond := range req.Status.Conditions {
		switch cond.Type {
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			if req.Status.BeginRefreshAt == nil || req.Status.NotAfter == nil {
				return // the API server refuses such a response
			}
			*c = certificate{
				key: c.nextKey, chain: certificatesOnly([]byte(req.Status.CertificateChain)),
				renew: req.Status.BeginRefreshAt.Add(mathrand.N(maxRenewJitter)), expires: req.Status.NotAfter.Time,
			}
			return
		case certificatesv1.PodCertificateRequestConditionTypeDenied,
			certificatesv1.PodCertificateRequestConditionTypeFailed:
			verb := map[string]string{certificatesv1.PodCertificateRequestConditionTypeDenied: "denied",
				certificatesv1.PodCertificateRequestConditionTypeFailed: "failed"}[cond.Type]
			c.refused = fmt.Errorf("PodCertificateRequest was permanently %s: reason=%q message=%q", verb, cond.Reason,
				cond.Message)
			c.request, c.nextKey = "", nil
			if m.cfg.Event != nil {
				m.cfg.Event(pod, corev1.EventTypeWarning, cond.Type,
					fmt.Sprintf("PodCertificateRequest %s/%s %s, reason=%q, message=%q", req.Namespace, req.Name, verb,
						cond.Reason, cond.Message))
			}
			return
		}
	}
}

func (c *certificate) overdue() time.Time { return c.renew.Add(renewOverdue) }

// warn records an event for a certificate in force that is overdue or past its end, once each.
func (m *Manager) warn(pod *corev1.Pod, c *certificate) {
	now := time.Now()
	record := func(at time.Time, reason, message string) {
		if now.Before(at) || !c.warned.Before(at) {
			return
		}
		c.warned = at
		if m.cfg.Event != nil {
			m.cfg.Event(pod, corev1.EventTypeWarning, reason, message)
		}
	}
	record(c.overdue(), "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
	record(c.expires, "CertificateExpired", "PodCertificate expired")
}

// due is when the certificate must be checked without a change; zero: never.
func (c *certificate) due() time.Time {
	switch {
	case !c.retry.IsZero():
		return c.retry
	case len(c.chain) == 0:
		return time.Time{}
	case c.request == "" && c.refused == nil:
		return c.renew
	case c.warned.Before(c.overdue()):
		return c.overdue()
	case c.warned.Before(c.expires):
		return c.expires
	}
	return time.Time{}
}

// load reads the certificate that an earlier run of the agent stored. The time at which the signer requests a renewal
// is no longer known: two thirds of its lifetime are usual.
func (c *certificate) load(dir string, src *corev1.PodCertificateProjection) {
	read := func(path string) []byte {
		if path == "" {
			return nil
		}
		data, err := os.ReadFile(filepath.Join(dir, dataLink, filepath.Clean(path)))
		if err != nil {
			return nil
		}
		return data
	}
	key, chain := read(src.KeyPath), read(src.CertificateChainPath)
	if both := read(src.CredentialBundlePath); both != nil {
		block, rest := pem.Decode(both)
		if block == nil {
			return
		}
		key, chain = pem.EncodeToMemory(block), rest
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil || !time.Now().Before(pair.Leaf.NotAfter) {
		return
	}
	life := pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)
	c.key, c.chain, c.renew, c.expires = key, chain, pair.Leaf.NotBefore.Add(life/3*2), pair.Leaf.NotAfter
}

// newKeyAndProof creates a key of a type that the API supports, in PEM (PKCS #8), and an empty
// PKCS #10 request in DER that proves its possession.
func newKeyAndProof(keyType string) (key, csr []byte, err error) {
	var private crypto.Signer
	switch keyType {
	case "RSA3072":
		private, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		private, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		private, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		private, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		err = fmt.Errorf("unknown key type %q", keyType)
	}
	if err != nil {
		return nil, nil, err
	}
	if csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), csr, nil
}

// certificatesOnly drops headers, and text between the blocks of a chain.
func certificatesOnly(chain []byte) []byte {
	var text []byte
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})...)
	}
	return text
}
