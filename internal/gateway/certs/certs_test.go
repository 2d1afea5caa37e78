package certs

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pair is a certificate and its key, as PEM.
func pair(t *testing.T) (cert, key []byte) {
	t.Helper()
	made, err := SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, ok := made.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatalf("%T", made.PrivateKey)
	}
	der, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// huge is a certificate with an RSA key of 100,000 bits.
func huge(t *testing.T) []byte {
	t.Helper()
	made, err := SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	key := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 100_000, 1), E: 3}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key, made.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// A Secret whose key does not fit its certificate, or in which one of them is missing or broken, is refused.
func TestRead(t *testing.T) {
	cert, key := pair(t)
	_, other := pair(t)
	for what, c := range map[string]struct {
		cert, key []byte
		ok        bool
	}{
		"a pair":               {cert, key, true},
		"the key of another":   {cert, other, false},
		"no key":               {cert, nil, false},
		"no certificate":       {nil, key, false},
		"the wrong way around": {key, cert, false},
		"half a certificate":   {cert[:len(cert)/2], key, false},
		"half a key":           {cert, key[:len(key)/2], false},
		"not PEM":              {[]byte("\x00\xff"), []byte("\x00\xff"), false},
	} {
		got, err := Read(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
			Data: map[string][]byte{corev1.TLSCertKey: c.cert, corev1.TLSPrivateKeyKey: c.key}})
		if (err == nil) != c.ok || (got != nil) != c.ok {
			t.Errorf("%s: %v %v", what, got != nil, err)
		}
	}
}

// CAs that cannot be read whole are refused: a part of them would let less in than was meant.
func TestReadCAs(t *testing.T) {
	cert, key := pair(t)
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	for what, c := range map[string]struct {
		text string
		ok   bool
	}{
		"one": {string(cert), true}, "two": {string(cert) + string(cert), true}, "none": {"", false},
		"a key": {string(key), false}, "a broken one": {string(broken), false},
		"one and a broken one": {string(cert) + string(broken), false},
		"one with a huge key":  {string(huge(t)), false},
	} {
		for kind, m := range map[string]*corev1.ConfigMap{"text": {Data: map[string]string{"ca.crt": c.text}},
			"binary": {BinaryData: map[string][]byte{"ca.crt": []byte(c.text)}}} {
			got := ReadCAs(m)
			if (got.Problem == "") != c.ok || c.ok && got.PEM != c.text || !c.ok && got.PEM != "" {
				t.Errorf("%s as %s: %+v", what, kind, got)
			}
		}
	}
}

// A client gets the certificate of the name that it asks for, one that does not fit only if no other does.
func TestFind(t *testing.T) {
	made := func() *tls.Certificate {
		c, err := SelfSigned(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	exact, wild, fallback := made(), made(), made()
	s := New()
	s.Add("a.example.com", exact)
	s.Add("*.example.com", wild)
	hello := func(name string) *tls.ClientHelloInfo {
		return &tls.ClientHelloInfo{ServerName: name, SupportedVersions: []uint16{tls.VersionTLS13},
			CipherSuites: []uint16{tls.TLS_AES_128_GCM_SHA256}, SupportedCurves: []tls.CurveID{tls.CurveP256},
			SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}}
	}
	for name, want := range map[string]*tls.Certificate{"a.example.com": exact, "b.example.com": wild,
		"A.Example.com.": exact, "b.c.example.com": wild, "example.com": nil, "other.org": nil, "": nil} {
		got, err := s.Find(hello(name))
		if want != nil && (err != nil || got != want) || want == nil && err == nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	s.Fallback = fallback
	if got, err := s.Find(hello("other.org")); err != nil || got != fallback {
		t.Errorf("the fallback: %v", err)
	}
}

// A copy with other certificates of a host changes no other host, and not the original.
func TestWith(t *testing.T) {
	made := func() *tls.Certificate { return &tls.Certificate{} }
	for _, host := range []string{"a.test", "*.test", ""} {
		s := New()
		before := map[string]*tls.Certificate{}
		for _, h := range []string{"a.test", "*.test", ""} {
			before[h] = made()
			s.Add(h, before[h])
		}
		names := map[string]string{"a.test": "a.test", "b.test": "*.test", "c.example": ""}
		first, second := made(), made()
		two, none := s.With(host, []*tls.Certificate{first, second}), s.With(host, nil)
		for name, of := range names {
			if got := s.candidates(name); len(got) != 1 || got[0] != before[of] {
				t.Errorf("the original of %s has %v for %s", host, got, name)
			}
			got := two.candidates(name)
			if of == host && (len(got) != 2 || got[0] != first || got[1] != second) ||
				of != host && (len(got) != 1 || got[0] != before[of]) {
				t.Errorf("with two for %q: %v for %s", host, got, name)
			}
			if got := none.candidates(name); of != host && (len(got) != 1 || got[0] != before[of]) ||
				of == host && of != "" && len(got) != 1 || of == host && of == "" && len(got) != 0 {
				t.Errorf("without %q: %v for %s", host, got, name)
			}
		}
	}
}
