// Package certrequest parses the PKCS #10 requests in CertificateSigningRequest objects. Admission
// and the signing controller use it. It must never trust the content of a request: it only parses
// it and checks that the requester holds the key.
package certrequest

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"carob/internal/base/keysize"
)

// Parse reads a PEM block of type CERTIFICATE REQUEST and checks its signature.
func Parse(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate request: %w", err)
	}
	if err := Check(r); err != nil {
		return nil, fmt.Errorf("check the certificate request: %w", err)
	}
	return r, nil
}

// Check checks the signature of a request, unless its key is too large for that.
func Check(r *x509.CertificateRequest) error {
	if err := keysize.Public(r.PublicKey); err != nil {
		return err
	}
	return r.CheckSignature()
}
