// Package keysize refuses RSA keys that are larger than anybody uses. The library checks a signature with a key of any
// size, and the time grows with the square: a key that fills a request keeps a processor busy for minutes. crypto/tls
// has such a limit only for the certificates of peers. Everything that gets keys from users calls it before it uses
// them; it must never use a key itself.
package keysize

import (
	"crypto/rsa"
	"encoding/pem"
	"fmt"
	"strings"
)

const (
	// MostRSABits is the length of the largest modulus.
	MostRSABits = 16384
	// mostPrivate is more than the encoded length of a private key of that size.
	mostPrivate = 16 << 10
)

// Public returns an error for a public key that is too large.
func Public(key any) error {
	if k, ok := key.(*rsa.PublicKey); ok && k.N.BitLen() > MostRSABits {
		return fmt.Errorf("an RSA key has %d bits, at most %d are supported", k.N.BitLen(), MostRSABits)
	}
	return nil
}

// PrivatePEM returns an error for a text with a private key that is too large.
func PrivatePEM(text []byte) error {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") && len(block.Bytes) > mostPrivate {
			return fmt.Errorf("a private key has %d bytes, at most %d are supported", len(block.Bytes), mostPrivate)
		}
	}
}
