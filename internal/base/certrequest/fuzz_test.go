package certrequest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"testing"
)

// FuzzParse parses untrusted requests: an accepted request is signed by its key.
func FuzzParse(f *testing.F) {
	for i, subject := range []pkix.Name{{CommonName: "system:node:a", Organization: []string{"system:nodes"}}, {}} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			f.Fatal(err)
		}
		template := &x509.CertificateRequest{Subject: subject, DNSNames: []string{"a.example", ""},
			IPAddresses: []net.IP{net.IPv4(1, 2, 3, 4)}}
		var signer any = key
		if i == 1 {
			_, signer, err = ed25519.GenerateKey(rand.Reader)
			if err != nil {
				f.Fatal(err)
			}
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, template, signer)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := Parse(text); err == nil && (r.CheckSignature() != nil || r.PublicKey == nil) {
			t.Errorf("%q: %+v", text, r)
		}
	})
}
