package tokens

import (
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
)

// Paths of the OpenID provider documents.
const (
	configurationPath = "/.well-known/openid-configuration"
	jwksPath          = "/openid/v1/jwks"
)

// Handlers are the OpenID provider documents by path: with them, others can verify tokens without
// the API server.
func (s *Service) Handlers() (map[string]http.Handler, error) {
	configuration, err := json.Marshal(map[string]any{
		"issuer":                                s.issuer,
		"jwks_uri":                              s.jwksURI,
		"response_types_supported":              []string{"id_token"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{"ES256"},
	})
	if err != nil {
		return nil, fmt.Errorf("write the OpenID configuration: %w", err)
	}
	jwk, err := publicJWK(&s.key.PublicKey, s.keyID)
	if err != nil {
		return nil, err
	}
	jwks, err := json.Marshal(map[string]any{"keys": []any{jwk}})
	if err != nil {
		return nil, fmt.Errorf("write the key set: %w", err)
	}
	return map[string]http.Handler{
		configurationPath: document("application/json", configuration),
		jwksPath:          document("application/jwk-set+json", jwks),
	}, nil
}

func document(contentType string, body []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(body) // the client has disconnected if it fails
	})
}

// publicJWK is a P-256 public key as a JSON web key.
func publicJWK(k *ecdsa.PublicKey, id string) (map[string]string, error) {
	point, err := k.Bytes() // 0x04 || X || Y
	if err != nil {
		return nil, fmt.Errorf("write the public key: %w", err)
	}
	half := (len(point) - 1) / 2
	enc := base64.RawURLEncoding.EncodeToString
	return map[string]string{
		"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": id,
		"x": enc(point[1 : 1+half]), "y": enc(point[1+half:]),
	}, nil
}
