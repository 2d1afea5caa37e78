package volume

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// signer keeps the requests of a world, in the order they came.
type signer struct {
	requests []*certificatesv1.PodCertificateRequest
	down     error
}

func (w *world) RequestCertificate(_ context.Context, pod *corev1.Pod, src *corev1.PodCertificateProjection,
	csr []byte) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.signer.down != nil {
		return "", w.signer.down
	}
	name := "req-" + strconv.Itoa(len(w.signer.requests))
	w.signer.requests = append(w.signer.requests,
		&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name},
			Spec: certificatesv1.PodCertificateRequestSpec{SignerName: src.SignerName, StubPKCS10Request: csr}})
	return name, nil
}

func (w *world) CertificateRequest(_ context.Context, _ *corev1.Pod,
	name string) (*certificatesv1.PodCertificateRequest, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.signer.requests {
		if r != nil && r.Name == name {
			return r, nil
		}
	}
	return nil, apierrors.NewNotFound(certificatesv1.Resource("podcertificaterequests"), name)
}

// issue answers the last request with a certificate for its key.
func (w *world) issue(t *testing.T, life time.Duration) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	req := w.signer.requests[len(w.signer.requests)-1]
	csr, err := x509.ParseCertificateRequest(req.Spec.StubPKCS10Request)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		t.Fatalf("no proof of possession: %v", err)
	}
	ca := newKey(t)
	now := time.Now()
	parent, err := x509.ParseCertificate(decode(t, selfSigned(t, 1, now, now.Add(life), ca)))
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: parent.SerialNumber, NotBefore: now, NotAfter: now.Add(life)}
	der, err := x509.CreateCertificate(rand.Reader, leaf, parent, csr.PublicKey, ca)
	if err != nil {
		t.Fatal(err)
	}
	req.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued,
			Status: metav1.ConditionTrue}},
		CertificateChain: "words\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		BeginRefreshAt:   new(metav1.NewTime(now.Add(life / 2))), NotAfter: new(metav1.NewTime(now.Add(life))),
	}
}

func (w *world) refuse(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.signer.requests[len(w.signer.requests)-1].Status.Conditions = []metav1.Condition{{Type: kind,
		Status: metav1.ConditionTrue, Reason: "No", Message: "not you"}}
}

func decode(t *testing.T, text string) []byte {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatal("no PEM")
	}
	return block.Bytes
}

func podWithCertificate(keyType string) *corev1.Pod {
	return podWith("u1",
		volume(
			"v", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
				PodCertificate: &corev1.PodCertificateProjection{
					SignerName: "example.com/s", KeyType: keyType, CredentialBundlePath: "both.pem", KeyPath: "key.pem",
					CertificateChainPath: "chain.pem"}}}}}))
}

// prepareIssued prepares the pod while its first request is answered.
func (w *world) prepareIssued(t *testing.T, pod *corev1.Pod, life time.Duration) {
	t.Helper()
	p := w.entry(pod)
	p.pod = pod
	if failed := w.setUpAll(t.Context(), p); len(failed) != 1 || !errors.Is(failed[0].Err, errNotIssued) {
		t.Fatalf("%v, want to wait for the signer", failed)
	}
	w.issue(t, life)
	if err := w.prepare(pod); err != nil {
		t.Fatal(err)
	}
}

func (w *world) read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(w.writtenDir("u1", "v"), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Each key type gives a pair that TLS takes, in one file and in two.
func TestCertificateKeys(t *testing.T) {
	for _, kind := range []string{"RSA3072", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			w.prepareIssued(t, podWithCertificate(kind), time.Hour)
			key, chain := w.read(t, "key.pem"), w.read(t, "chain.pem")
			if _, err := tls.X509KeyPair([]byte(chain), []byte(key)); err != nil ||
				w.read(t, "both.pem") != key+chain || strings.Contains(chain, "words") {
				t.Errorf("%v\n%s", err, w.read(t, "both.pem"))
			}
		})
	}
	if _, _, err := newKeyAndProof("DSA"); err == nil {
		t.Error("made a key of an unknown type")
	}
}

// A certificate is renewed with a new key when it is due; until the new one is there, and
// while the API fails, the old one stays. A restart of the agent requests none.
func TestCertificateRenewal(t *testing.T) {
	w := newWorld(t)
	pod := podWithCertificate("ECDSAP256")
	w.prepareIssued(t, pod, time.Hour)
	first := w.read(t, "both.pem")
	_, next := w.due(time.Now(), true)
	if d := time.Until(next); d < 29*time.Minute || d > 30*time.Minute+maxRenewJitter {
		t.Errorf("next renewal in %v, want beginRefreshAt and a little", d)
	}
	w.Manager = w.restart()
	w.mustPrepare(pod)
	p := w.find("u1")
	c := p.certificates["v/0"]
	if len(w.signer.requests) != 1 || w.read(t, "both.pem") != first || c.due().IsZero() {
		t.Fatalf("%d requests after a restart, want the stored certificate to stay", len(w.signer.requests))
	}

	c.renew = time.Now()
	w.signer.down = errors.New("down")
	w.refresh(t.Context(), p)
	if d := time.Until(c.due()); w.read(t, "both.pem") != first || d <= 0 || d > tokenRetry {
		t.Errorf("tries again in %v, want at most %v", d, tokenRetry)
	}
	w.signer.down = nil
	w.refresh(t.Context(), p)
	if len(w.signer.requests) != 2 || w.read(t, "both.pem") != first || !c.due().Equal(c.overdue()) {
		t.Fatalf("%d requests, due %v", len(w.signer.requests), c.due())
	}
	w.signer.requests[1] = nil // deleted by another client
	w.refresh(t.Context(), p)
	if len(w.signer.requests) != 3 {
		t.Fatalf("%d requests, want a new one for the deleted", len(w.signer.requests))
	}
	w.issue(t, time.Hour)
	w.refresh(t.Context(), p)
	second := w.read(t, "both.pem")
	if decodedKey(t, second).Equal(decodedKey(t, first)) {
		t.Error("the key was used again")
	}

	w.events = nil
	c.renew, c.expires = time.Now().Add(-renewOverdue), time.Now()
	for range 2 {
		w.refresh(t.Context(), p)
	}
	if got := strings.Join(w.events,
		"\n"); got != "CertificateOverdueForRefresh PodCertificate refresh overdue\nCertificateExpired PodCertificate expired" {
		t.Errorf("events:\n%s", got)
	}
}

func decodedKey(t *testing.T, text string) *ecdsa.PrivateKey {
	t.Helper()
	key, err := x509.ParsePKCS8PrivateKey(decode(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return key.(*ecdsa.PrivateKey)
}

// A refused certificate is not requested again; a certificate in force stays.
func TestCertificateRefused(t *testing.T) {
	const want = `PodCertificateRequest was permanently denied: reason="No" message="not you"`
	t.Run("first", func(t *testing.T) {
		w := newWorld(t)
		pod := podWithCertificate("ED25519")
		p := w.entry(pod)
		p.pod = pod
		w.setUpAll(t.Context(), p)
		w.refuse(certificatesv1.PodCertificateRequestConditionTypeDenied)
		for range 2 {
			if err := w.prepare(pod); err == nil || !strings.Contains(err.Error(), want) {
				t.Fatal(err)
			}
		}
		if len(w.signer.requests) != 1 || len(w.events) < 1 ||
			w.events[0] != `Denied PodCertificateRequest ns/req-0 denied, reason="No", message="not you"` {
			t.Errorf("%d requests, events %q", len(w.signer.requests), w.events)
		}
	})
	t.Run("renewal", func(t *testing.T) {
		w := newWorld(t)
		w.prepareIssued(t, podWithCertificate("ED25519"), time.Hour)
		first, p := w.read(t, "both.pem"), w.find("u1")
		p.certificates["v/0"].renew = time.Now()
		w.refresh(t.Context(), p)
		w.refuse(certificatesv1.PodCertificateRequestConditionTypeFailed)
		for range 2 {
			w.refresh(t.Context(), p)
		}
		if len(w.signer.requests) != 2 || w.read(t, "both.pem") != first || len(w.events) != 1 ||
			!strings.HasPrefix(w.events[0], "Failed PodCertificateRequest ns/req-1 failed") {
			t.Errorf("%d requests, events %q", len(w.signer.requests), w.events)
		}
	})
}
