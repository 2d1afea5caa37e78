package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"carob/internal/base/certrequest"
	"carob/internal/base/pki"
	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
)

func encode(t *testing.T, r x509.CertificateRequest) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &r, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func nodeSubject(cn string) pkix.Name {
	return pkix.Name{CommonName: cn, Organization: []string{"system:nodes"}}
}

func request(t *testing.T, signer string, r x509.CertificateRequest,
	usages ...certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r", CreationTimestamp: metav1.Now()},
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer, Request: encode(t, r),
			Usages: usages, Username: "somebody"},
	}
}

func approved(r *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	r.Status.Conditions = append(r.Status.Conditions, condition(certificatesv1.CertificateApproved, "ByHand", ""))
	return r
}

func TestSignerRules(t *testing.T) {
	const (
		sig, enc = certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment
		cl, srv  = certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth
	)
	user := x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}
	agent := x509.CertificateRequest{Subject: nodeSubject("system:node:a")}
	serving := x509.CertificateRequest{Subject: nodeSubject("system:node:a"), DNSNames: []string{"a"}}
	mailed := serving
	mailed.EmailAddresses = []string{"a@example.com"}
	for _, tc := range []struct {
		name, signer string
		r            x509.CertificateRequest
		usages       []certificatesv1.KeyUsage
		refused      string // "": signed
	}{
		{"client", certificatesv1.KubeAPIServerClientSignerName, user, []certificatesv1.KeyUsage{cl}, ""},
		{"client with server usage", certificatesv1.KubeAPIServerClientSignerName, user,
			[]certificatesv1.KeyUsage{cl, srv}, "invalid usage for client certificate: server auth"},
		{"client without its usage", certificatesv1.KubeAPIServerClientSignerName, user, []certificatesv1.KeyUsage{sig},
			"missing required usage"},
		{"agent", certificatesv1.KubeAPIServerClientKubeletSignerName, agent, []certificatesv1.KeyUsage{sig, cl}, ""},
		{"agent with an RSA key", certificatesv1.KubeAPIServerClientKubeletSignerName, agent,
			[]certificatesv1.KeyUsage{cl, enc, sig}, ""},
		{"agent without signature", certificatesv1.KubeAPIServerClientKubeletSignerName, agent,
			[]certificatesv1.KeyUsage{cl}, "usages did not match [client auth digital signature key encipherment]"},
		{"agent that is a user", certificatesv1.KubeAPIServerClientKubeletSignerName, user,
			[]certificatesv1.KeyUsage{sig, cl}, "organization is not system:nodes"},
		{"agent of another name", certificatesv1.KubeAPIServerClientKubeletSignerName,
			x509.CertificateRequest{Subject: nodeSubject("admin")}, []certificatesv1.KeyUsage{sig, cl},
			"subject common name does not begin with system:node:"},
		{"agent with a host", certificatesv1.KubeAPIServerClientKubeletSignerName, serving,
			[]certificatesv1.KeyUsage{sig, cl}, "DNS subjectAltNames"},
		{"serving", certificatesv1.KubeletServingSignerName, serving, []certificatesv1.KeyUsage{sig, enc, srv}, ""},
		{"serving no host", certificatesv1.KubeletServingSignerName, agent, []certificatesv1.KeyUsage{sig, srv},
			"DNS or IP"},
		{"serving for a user, no host", certificatesv1.KubeletServingSignerName, user,
			[]certificatesv1.KeyUsage{cl}, "subject organization is not system:nodes"},
		{"serving of another name and usage", certificatesv1.KubeletServingSignerName,
			x509.CertificateRequest{Subject: nodeSubject("admin"), DNSNames: []string{"a"}},
			[]certificatesv1.KeyUsage{cl}, "usages did not match"},
		{"serving with mail", certificatesv1.KubeletServingSignerName, mailed, []certificatesv1.KeyUsage{sig, srv},
			"Email subjectAltNames are not allowed"},
		{"serving as a client", certificatesv1.KubeletServingSignerName, serving,
			[]certificatesv1.KeyUsage{sig, srv, cl},
			"usages did not match [digital signature key encipherment server auth]"},
		{"legacy takes all", legacyUnknown, user, []certificatesv1.KeyUsage{srv, certificatesv1.UsageCodeSigning}, ""},
		{"unknown usage", legacyUnknown, user, []certificatesv1.KeyUsage{"fun"}, "unrecognized"},
	} {
		r := request(t, tc.signer, tc.r, tc.usages...)
		parsed, err := certrequest.Parse(r.Spec.Request)
		if err != nil {
			t.Fatal(err)
		}
		if s := decide(r, parsed, time.Now()); s.sign || s.refuse != nil {
			t.Errorf("%s: signed or refused before it was approved", tc.name)
		}
		s := decide(approved(r), parsed, time.Now())
		if s.sign != (tc.refused == "") || (s.refuse == nil) != s.sign || s.refuse != nil &&
			!strings.Contains(s.refuse.Error(), tc.refused) {
			t.Errorf("%s: sign %v, refuse %v", tc.name, s.sign, s.refuse)
		}
		r.Spec.SignerName = "example.com/other"
		if s := decide(r, parsed, time.Now()); s.sign || s.refuse != nil {
			t.Errorf("%s: acted for another signer", tc.name)
		}
	}
}

func TestValidity(t *testing.T) {
	for seconds, want := range map[int32]time.Duration{1: minLife, 3600: time.Hour, 1 << 30: maxLife} {
		if got := life(
			&certificatesv1.CertificateSigningRequest{
				Spec: certificatesv1.CertificateSigningRequestSpec{ExpirationSeconds: &seconds}}); got != want {
			t.Errorf("%d s: %v", seconds, got)
		}
	}
	if got := life(&certificatesv1.CertificateSigningRequest{}); got != maxLife {
		t.Errorf("default: %v", got)
	}
}

// drive reconciles r as the loop would and returns the stored object, nil if it is gone.
func drive(t *testing.T, signer Signer, r *certificatesv1.CertificateSigningRequest,
	allowed ...string) (*certificatesv1.CertificateSigningRequest, time.Duration) {
	t.Helper()
	client := fake.NewClientset(r)
	client.PrependReactor("create", "subjectaccessreviews", func(a ktesting.Action) (bool, runtime.Object, error) {
		review := a.(ktesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		at := review.Spec.ResourceAttributes
		review.Status.Allowed = review.Spec.User == r.Spec.Username && at.Verb == "create" &&
			at.Group == "certificates.k8s.io" &&
			at.Resource == "certificatesigningrequests" && slices.Contains(allowed, at.Subresource)
		return true, review, nil
	})
	c := New(client, inventory.New(discovery.NewDiscoveryClient(nil), nil, 0), signer)
	var again time.Duration
	for range 3 {
		var err error
		if again, err = c.reconcile(context.Background(), r.Name); err != nil {
			t.Fatal(err)
		}
	}
	got, err := client.CertificatesV1().CertificateSigningRequests().Get(context.Background(), r.Name,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, again
	}
	if err != nil {
		t.Fatal(err)
	}
	return got, again
}

func authority(t *testing.T) *pki.PKI {
	t.Helper()
	p, err := pki.Open(pki.Config{Dir: t.TempDir(), NodeName: "n"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSelfApproval(t *testing.T) {
	keys := authority(t)
	agent := x509.CertificateRequest{Subject: nodeSubject("system:node:a")}
	for _, tc := range []struct {
		name, user string
		allowed    []string
		want       bool
	}{
		{"renews its own", "system:node:a", []string{"selfnodeclient"}, true},
		{"another node's", "system:node:b", []string{"selfnodeclient"}, false},
		{"joins", "system:bootstrap:abcdef", []string{"nodeclient"}, true},
		{"without the right", "system:bootstrap:abcdef", nil, false},
	} {
		r := request(t, certificatesv1.KubeAPIServerClientKubeletSignerName, agent,
			certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)
		r.Spec.Username = tc.user
		got, _ := drive(t, keys, r, tc.allowed...)
		if has(got, certificatesv1.CertificateApproved) != tc.want || (len(got.Status.Certificate) > 0) != tc.want {
			t.Errorf("%s: %+v", tc.name, got.Status)
		}
	}
	r := request(t, certificatesv1.KubeAPIServerClientSignerName, agent, certificatesv1.UsageClientAuth)
	r.Spec.Username = "system:node:a"
	if got, _ := drive(t, keys, r, "selfnodeclient", "nodeclient"); has(got, certificatesv1.CertificateApproved) {
		t.Error("a request for another signer was approved")
	}
}

func TestSign(t *testing.T) {
	keys := authority(t)
	hour := int32(3600)
	r := approved(request(t, certificatesv1.KubeAPIServerClientSignerName,
		x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"dev"}}},
		certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature))
	r.Spec.ExpirationSeconds = &hour
	got, again := drive(t, keys, r)
	block, _ := pem.Decode(got.Status.Certificate)
	if block == nil {
		t.Fatalf("not signed: %+v", got.Status)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Verify(x509.VerifyOptions{Roots: keys.Pool,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if left := time.Until(c.NotAfter); c.Subject.CommonName != "jane" || c.Subject.Organization[0] != "dev" || c.IsCA ||
		c.KeyUsage != x509.KeyUsageDigitalSignature || left > time.Hour || left < 59*time.Minute {
		t.Errorf("%v, usage %b, %v left", c.Subject, c.KeyUsage, left)
	}
	if again <= 0 || again > keepEnded {
		t.Errorf("the next check is after %v", again)
	}
	r = approved(request(t, certificatesv1.KubeletServingSignerName, x509.CertificateRequest{},
		certificatesv1.UsageServerAuth))
	if got, _ := drive(t, keys, r); !has(got, certificatesv1.CertificateFailed) ||
		got.Status.Conditions[1].Reason != "SignerValidationFailure" || len(got.Status.Conditions) != 2 {
		t.Errorf("%+v", got.Status)
	}
}

type refusing struct{}

func (refusing) Sign(*x509.CertificateRequest, x509.KeyUsage, []x509.ExtKeyUsage, time.Duration, time.Time) ([]byte,
	error) {
	return nil, errors.New("no key")
}

func TestSignerFails(t *testing.T) {
	r := approved(request(t, legacyUnknown, x509.CertificateRequest{}, certificatesv1.UsageClientAuth))
	c := New(fake.NewClientset(r), inventory.New(discovery.NewDiscoveryClient(nil), nil, 0), refusing{})
	if _, err := c.reconcile(t.Context(), "r"); err == nil {
		t.Error("not retried")
	}
}

func TestClean(t *testing.T) {
	short := int32(600)
	for _, tc := range []struct {
		name   string
		change func(r *certificatesv1.CertificateSigningRequest)
		keep   time.Duration
	}{
		{"pending", func(*certificatesv1.CertificateSigningRequest) {}, 24 * time.Hour},
		{"denied", func(r *certificatesv1.CertificateSigningRequest) {
			r.Status.Conditions = append(r.Status.Conditions, condition(certificatesv1.CertificateDenied, "No", ""))
		}, time.Hour},
		{"signed", func(r *certificatesv1.CertificateSigningRequest) { approved(r) }, time.Hour},
		{"signed and expired",
			func(r *certificatesv1.CertificateSigningRequest) { r.Spec.ExpirationSeconds = &short; approved(r) },
			10 * time.Minute},
		{"approved, not ours to sign", func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = "example.com/other"
			approved(r)
		}, 24 * time.Hour},
		{"failed", func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Usages = nil; approved(r) }, time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			keys := authority(t)
			r := request(t, certificatesv1.KubeAPIServerClientSignerName,
				x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, certificatesv1.UsageClientAuth)
			tc.change(r)
			got, again := drive(t, keys, r)
			if got == nil || again > tc.keep || again < tc.keep-time.Second {
				t.Fatalf("%s: the next check is after %v", tc.name, again)
			}
			time.Sleep(again - time.Second)
			if got, _ = drive(t, keys, got); got == nil {
				t.Fatalf("%s: removed too early", tc.name)
			}
			time.Sleep(2 * time.Second)
			if got, _ = drive(t, keys, got); got != nil {
				t.Errorf("%s: kept: %+v", tc.name, got.Status)
			}
		})
	}
}

func TestConditionFalse(t *testing.T) {
	r := request(t, legacyUnknown, x509.CertificateRequest{}, certificatesv1.UsageClientAuth)
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved,
		Status: corev1.ConditionFalse}}
	if has(r, certificatesv1.CertificateApproved) {
		t.Error("a False condition takes effect")
	}
}

// A webhook refuses the status as if the request did not exist, or as a conflict: it is tried again.
func TestRefusedStatus(t *testing.T) {
	requests := certificatesv1.Resource("certificatesigningrequests")
	for _, refusal := range []error{apierrors.NewNotFound(requests, "r"),
		apierrors.NewConflict(requests, "r", errors.New("a webhook says so"))} {
		r := approved(request(t, certificatesv1.KubeletServingSignerName, x509.CertificateRequest{},
			certificatesv1.UsageServerAuth))
		client := fake.NewClientset(r)
		controllertest.FailOnce(client, "update", "certificatesigningrequests/status", refusal)
		c := New(client, inventory.New(discovery.NewDiscoveryClient(nil), nil, 0), refusing{})
		if _, err := c.reconcile(t.Context(), "r"); !errors.Is(err, refusal) {
			t.Errorf("%v: %v", refusal, err)
		}
		if _, err := c.reconcile(t.Context(), "r"); err != nil {
			t.Error(err)
		}
	}
}
