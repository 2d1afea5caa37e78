package keysize

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
)

func TestSizes(t *testing.T) {
	of := func(bits uint) *rsa.PublicKey {
		return &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), int(bits)-1, 1), E: 65537}
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key any
		ok  bool
	}{{of(2048), true}, {of(MostRSABits), true}, {of(MostRSABits + 1), false}, {of(1 << 20), false},
		{other.Public(), true}, {nil, true}} {
		if err := Public(c.key); (err == nil) != c.ok {
			t.Errorf("%T: %v", c.key, err)
		}
	}
	// The encoding of a key does not depend on whether its numbers are primes.
	half := new(big.Int).SetBit(big.NewInt(1), MostRSABits/2-1, 1)
	largest := x509.MarshalPKCS1PrivateKey(&rsa.PrivateKey{PublicKey: *of(MostRSABits), D: of(MostRSABits).N,
		Primes: []*big.Int{half, half}})
	text := func(kind string, size int) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: make([]byte, size)})
	}
	for name, c := range map[string]struct {
		text []byte
		ok   bool
	}{
		"the largest":          {pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: largest}), true},
		"larger":               {text("RSA PRIVATE KEY", mostPrivate+1), false},
		"after a certificate":  {append(text("CERTIFICATE", 1<<20), text("PRIVATE KEY", 1<<20)...), false},
		"a large certificate":  {text("CERTIFICATE", 1<<20), true},
		"nothing":              {nil, true},
		"text before the key":  {append([]byte("a\n"), text("EC PRIVATE KEY", 1<<20)...), false},
		"not in this encoding": {make([]byte, 1<<20), true},
	} {
		if err := PrivatePEM(c.text); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
