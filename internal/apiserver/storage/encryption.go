package storage

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptionmetrics "k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/klog/v2"

	"carob/internal/base/errkind"
	"carob/internal/base/filewatch"
)

// Transformers say how the bytes of a kind are stored in the engine.
type Transformers func(schema.GroupResource) value.Transformer

// Plain stores them unchanged, and rejects reading encrypted ones.
func Plain(schema.GroupResource) value.Transformer { return identity.NewEncryptCheckTransformer() }

const (
	// serverID identifies the API server in labels of metrics.
	serverID = "carob"
	// keyServerPollInterval is the time between two requests to key servers that have not answered yet.
	keyServerPollInterval = time.Second
)

// Encryption encrypts objects by an EncryptionConfiguration (apiserver.config.k8s.io/v1) and
// follows its file. Nil, without a file, stores them unencrypted.
type Encryption struct {
	file    string
	current *encryptionconfig.DynamicTransformers
	end     context.CancelFunc // closes the connections of current
	used    string             // hash of its content
	next    *nextEncryption
	bad     string // the last invalid content, reported once
}

// nextEncryption is used when its key servers answer.
type nextEncryption struct {
	*encryptionconfig.EncryptionConfiguration
	end      context.CancelFunc
	reported bool
}

// LoadEncryption reads the file; nil if it has no name. A key server that does not answer yet is
// not an error here. The caller closes the result.
func LoadEncryption(ctx context.Context, file string) (*Encryption, error) {
	if file == "" {
		return nil, nil
	}
	e := &Encryption{file: file}
	c, end, err := e.read(ctx)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "read the encryption configuration %s: %w", file, err)
	}
	e.used, e.end = c.EncryptionFileContentHash, end
	e.current = encryptionconfig.NewDynamicTransformers(c.Transformers, c.HealthChecks[0], end, c.KMSCloseGracePeriod)
	encryptionmetrics.RecordEncryptionConfigLastConfigInfo(serverID, e.used)
	return e, nil
}

// Close closes the connections to key servers, after the last request and after Run.
func (e *Encryption) Close() {
	if e == nil {
		return
	}
	e.end()
	if e.next != nil {
		e.next.end()
	}
}

// read loads the file, with connections that last until the returned function is called.
func (e *Encryption) read(ctx context.Context) (*encryptionconfig.EncryptionConfiguration, context.CancelFunc, error) {
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	// A configuration that is reloaded has exactly one health check.
	c, err := encryptionconfig.LoadEncryptionConfig(ctx, e.file, true, serverID)
	if err != nil {
		end()
		return nil, nil, err
	}
	return c, end, nil
}

// Transformers returns how each kind is stored; the result follows the file.
func (e *Encryption) Transformers() Transformers {
	if e == nil {
		return Plain
	}
	return e.current.TransformerForResource
}

// HealthChecks returns the check "kms-providers", which requests the state of key servers; none if
// objects are not encrypted.
func (e *Encryption) HealthChecks() []healthz.HealthChecker {
	if e == nil {
		return nil
	}
	return []healthz.HealthChecker{e.current}
}

// Check returns why the key servers do not work, if they do not.
func (e *Encryption) Check(ctx context.Context) error {
	if e == nil {
		return nil
	}
	return checkNow(ctx, e.current)
}

func checkNow(ctx context.Context, c healthz.HealthChecker) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil)
	if err != nil {
		return err
	}
	return c.Check(req)
}

// Run follows the file until ctx ends. An invalid file is reported and the previous configuration
// stays; a valid one is used as soon as its key servers answer.
func (e *Encryption) Run(ctx context.Context) {
	if e != nil {
		filewatch.Follow(ctx, e.file, e.look)
	}
}

func (e *Encryption) look(ctx context.Context) time.Duration {
	log := klog.FromContext(ctx).WithValues("file", e.file)
	hash, err := encryptionconfig.GetEncryptionConfigHash(e.file)
	switch {
	case err != nil:
		e.refuse(log, err, "")
		return 0
	case e.next != nil && hash != e.next.EncryptionFileContentHash:
		e.next.end()
		e.next = nil
	}
	if hash == e.used || hash == e.bad {
		return 0
	}
	if e.next == nil {
		c, end, err := e.read(ctx)
		if err != nil {
			e.refuse(log, err, hash)
			return 0
		}
		e.next = &nextEncryption{EncryptionConfiguration: c, end: end}
	}
	n := e.next
	if err := checkNow(ctx, n.HealthChecks[0]); err != nil {
		if !n.reported {
			n.reported = true
			log.Error(err, "The new encryption configuration waits for its key servers; the previous one stays in effect")
		}
		return keyServerPollInterval
	}
	e.next, e.bad, e.used, e.end = nil, "", n.EncryptionFileContentHash, n.end
	e.current.Set(n.Transformers, n.end, n.HealthChecks[0], n.KMSCloseGracePeriod)
	encryptionmetrics.RecordEncryptionConfigAutomaticReloadSuccess(serverID, e.used)
	log.Info("The encryption configuration was changed")
	return 0
}

func (e *Encryption) refuse(log klog.Logger, err error, hash string) {
	e.bad = hash
	log.Error(err, "The encryption configuration is invalid; the previous one stays in effect")
	encryptionmetrics.RecordEncryptionConfigAutomaticReloadFailure(serverID)
}
