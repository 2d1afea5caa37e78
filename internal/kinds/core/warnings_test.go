package core

import (
	"encoding/pem"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A private key that fills a Secret is not looked at for a warning: that would keep a processor busy.
func TestWarningOfLargeKey(t *testing.T) {
	key := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: make([]byte, 500_000)})
	got := secretWarnings(&corev1.Secret{Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSPrivateKeyKey: key}})
	if len(got) != 1 || !strings.Contains(got[0], "a private key has 500000 bytes") {
		t.Error(got)
	}
}
