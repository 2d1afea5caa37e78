package certrequest

import (
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	"carob/internal/base/keysize"
)

// signed is a request with an RSA key of so many bits, and a signature of the right length.
func signed(t *testing.T, bits int) []byte {
	t.Helper()
	encode := func(v any) []byte {
		der, err := asn1.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	n := new(big.Int).SetBit(big.NewInt(1), bits-1, 1)
	key, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n, E: 1<<31 - 1})
	if err != nil {
		t.Fatal(err)
	}
	type request struct {
		Version    int
		Subject    asn1.RawValue
		Key        asn1.RawValue
		Attributes asn1.RawValue
	}
	info := encode(request{Subject: asn1.RawValue{FullBytes: []byte{0x30, 0}}, Key: asn1.RawValue{FullBytes: key},
		Attributes: asn1.RawValue{FullBytes: []byte{0xa0, 0}}})
	der := encode(struct {
		Info      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: info}, pkix.AlgorithmIdentifier{
		Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: make([]byte, bits/8), BitLength: bits}})
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// The signature is not checked with a key whose size would keep a processor busy for minutes.
func TestLargeKey(t *testing.T) {
	for _, bits := range []int{2048, keysize.MostRSABits, 2 * keysize.MostRSABits, 1 << 20} {
		_, err := Parse(signed(t, bits))
		if err == nil {
			t.Fatalf("%d bits: the signature is zero", bits)
		}
		if refused := strings.Contains(err.Error(), "are supported"); refused != (bits > keysize.MostRSABits) {
			t.Errorf("%d bits: %v", bits, err)
		}
	}
}
