package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"carob/internal/base/errkind"
)

// Transformers say how the bytes of a kind are kept in the engine.
type Transformers func(schema.GroupResource) value.Transformer

// Plain keeps them as they are, and refuses to read what is encrypted.
func Plain(schema.GroupResource) value.Transformer { return identity.NewEncryptCheckTransformer() }

// LoadEncryption reads an EncryptionConfiguration (apiserver.config.k8s.io/v1).
// Connections to key servers end with ctx.
func LoadEncryption(ctx context.Context, file string) (Transformers, error) {
	if file == "" {
		return Plain, nil
	}
	c, err := encryptionconfig.LoadEncryptionConfig(ctx, file, false, "carob")
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "read the encryption configuration %s: %w", file, err)
	}
	return encryptionconfig.StaticTransformers(c.Transformers).TransformerForResource, nil
}
