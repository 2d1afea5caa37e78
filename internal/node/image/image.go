// Package image finds images on this machine, and pulls images with the credentials of the pod. The executor drives it;
// core/podlife decides whether and when to pull. It must never keep a secret longer than a pull.
//
// Contract: docs/spec/pod-lifecycle.md.
package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/pullcredentials"
	"carob/internal/node/credentials"
)

// Runtime are the image calls of a runtime.
type Runtime interface {
	ImageStatus(context.Context, *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error)
	PullImage(context.Context, *cri.PullImageRequest) (*cri.PullImageResponse, error)
}

// Secrets reads pull secrets.
type Secrets interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Config is what a Manager works with.
type Config struct {
	Runtime Runtime
	Secrets Secrets
	// Handler is the runtime handler of a pod, whose runtime inspects and pulls images; nil: there is one
	// runtime for all.
	Handler func(context.Context, *corev1.Pod) (string, error)
	// MaxPulls bounds the pulls at one time; 1 is upstream's serial pulling.
	MaxPulls int
	// Plugins provide credentials that are tried after the secrets of the pod; nil: there are none (S13.8).
	Plugins *credentials.Plugins
	// Policy is for which present images a pod needs credentials.
	Policy pullcredentials.Policy
	// NodeConfig is a docker configuration file with credentials of the node, for all pods. It need not exist.
	NodeConfig string
	// Limit refuses pulls that exceed a rate; nil: none is refused (S11.26).
	Limit *rate.Limiter
	// Event records an event about the whole pod; must not block.
	Event func(pod *corev1.Pod, eventType, reason, message string)
	// Records is the directory of the records of pulls with credentials; empty: they are in memory only.
	Records string
	// Pulled is called after each pull that brought an image; nil: not called.
	Pulled func()
}

// Manager finds existing images and pulls others. It is safe for concurrent use.
type Manager struct {
	cfg     Config
	slots   *semaphore.Weighted
	records *records

	mu      sync.Mutex
	pulls   map[string]*pull // in flight, by image and credentials
	allowed map[access]bool  // restricted images that pods may use
}

// access is a pod and an image under a name.
type access struct {
	pod      types.UID
	name, id string
}

// allowedMax limits the cache of past decisions; they can be computed again.
const allowedMax = 4096

// New returns a Manager; it starts no pull.
func New(cfg Config) (*Manager, error) {
	records, err := openRecords(cfg.Records)
	if err != nil {
		return nil, err
	}
	return &Manager{
		cfg: cfg, slots: semaphore.NewWeighted(int64(max(cfg.MaxPulls, 1))), records: records,
		pulls: map[string]*pull{}, allowed: map[access]bool{},
	}, nil
}

// InvalidNameError is the error of an invalid image name (L3.102).
type InvalidNameError struct {
	Name string
	Err  error
}

func (e *InvalidNameError) Error() string {
	return fmt.Sprintf("couldn't parse image name %q: %v", e.Name, e.Err)
}

func (e *InvalidNameError) Unwrap() error { return e.Err }

// Normalize completes a name from a spec: registry, path, and the tag "latest" if it has neither
// tag nor digest.
func Normalize(name string) (string, error) {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", &InvalidNameError{Name: name, Err: err}
	}
	return reference.TagNameOnly(ref).String(), nil
}

// State reports whether the image is present and the pod may use it. An image for which the policy requires credentials
// counts as absent until the pod has pulled it with its own, too (L3.114, S11.28).
func (m *Manager) State(ctx context.Context, pod *corev1.Pod, image string) podlife.ImageState {
	st := podlife.ImageState{Image: image}
	found, err := m.lookup(ctx, pod, image)
	var invalid *InvalidNameError
	switch {
	case errors.As(err, &invalid):
		st.InvalidName = invalid.Error()
	case err != nil:
		st.Err = err.Error()
	case found != nil && m.mayUse(ctx, pod, image, found.Id):
		st.Ref = found.Id
	}
	return st
}

func (m *Manager) mayUse(ctx context.Context, pod *corev1.Pod, image, id string) bool {
	name, err := Normalize(image)
	if err != nil { // lookup has refused the name
		return false
	}
	if !m.cfg.Policy.Verifies(image, m.records.pulled(name, id)) || m.records.open(name, id) {
		return true
	}
	who := access{pod.UID, name, id}
	m.mu.Lock()
	known := m.allowed[who]
	m.mu.Unlock()
	if known {
		return true
	}
	ring, _ := m.keyring(ctx, pod)
	with := m.accountOf(ctx, pod)
	for _, k := range ring.lookup(name) {
		with = append(with, k.from)
	}
	if !m.records.allows(name, id, with) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.allowed) >= allowedMax {
		clear(m.allowed)
	}
	m.allowed[who] = true
	return true
}

// Listed gets the list of existing images: records of others are removed.
func (m *Manager) Listed(images []*cri.Image) error { return m.records.prune(images) }

// Image returns the image with this name in the runtime of the pod; nil if it has none.
func (m *Manager) Image(ctx context.Context, pod *corev1.Pod, image string) (*cri.Image, error) {
	return m.lookup(ctx, pod, image)
}

// handler is the runtime handler that requests about images of the pod name.
func (m *Manager) handler(ctx context.Context, pod *corev1.Pod) (string, error) {
	if m.cfg.Handler == nil {
		return "", nil
	}
	return m.cfg.Handler(ctx, pod)
}

func (m *Manager) lookup(ctx context.Context, pod *corev1.Pod, image string) (*cri.Image, error) {
	name := image
	// An image ID is used as it is: as a name it would be a tag of an image called sha256.
	if !strings.HasPrefix(image, "sha256:") {
		var err error
		if name, err = Normalize(image); err != nil {
			return nil, err
		}
	}
	handler, err := m.handler(ctx, pod)
	if err != nil {
		return nil, err
	}
	resp, err := m.cfg.Runtime.ImageStatus(ctx, &cri.ImageStatusRequest{
		Image: &cri.ImageSpec{Image: name, UserSpecifiedImage: image, RuntimeHandler: handler}})
	if err != nil {
		return nil, err
	}
	return resp.Image, nil
}

// pull is one PullImage call, for which several pods may wait.
type pull struct {
	waiters int
	cancel  context.CancelFunc
	done    chan struct{}
	ref     string
	began   time.Time
	took    time.Duration
	err     error
}

// Pull pulls an image with the pull secrets of the pod. Pods that need the same at the same time
// share one pull; it continues until the last of them is cancelled.
func (m *Manager) Pull(ctx context.Context, pod *corev1.Pod, image string,
	sandbox *cri.PodSandboxConfig) (*podlife.Pulled, *podlife.Failure) {
	requested := time.Now()
	name, err := Normalize(image)
	if err != nil {
		return nil, &podlife.Failure{Reason: "InvalidImageName",
			Message: fmt.Sprintf("Failed to apply default image tag %q: %v", image, err), Permanent: true}
	}
	handler, err := m.handler(ctx, pod)
	if err != nil {
		return nil, failureOf(image, err)
	}
	spec := &cri.ImageSpec{Image: name, UserSpecifiedImage: image, RuntimeHandler: handler}
	keys, missing := m.keys(ctx, pod, name)
	var ref string
	var took time.Duration
	var opened *key
	// Not every pod may use an image that needs a pod's credential.
	guarded := slices.ContainsFunc(keys, func(k *key) bool { return !k.everybody })
	if guarded {
		if err := m.records.begin(name); err != nil {
			return nil, failureOf(image, err)
		}
	}
	for _, opened = range keys {
		if ref, took, err = m.share(ctx, spec, opened.auth, sandbox); err == nil || ctx.Err() != nil {
			break
		}
	}
	if len(keys) == 0 { // anonymous only without credentials
		ref, took, err = m.share(ctx, spec, nil, sandbox)
	}
	if err != nil {
		if guarded {
			err = errors.Join(err, m.records.end(name, "", credential{}))
		}
		if len(missing) > 0 && ctx.Err() == nil {
			m.cfg.Event(pod, corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret", fmt.Sprintf( // L3.50 step 9
				"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.",
				strings.Join(missing, ", ")))
		}
		return nil, failureOf(image, err)
	}
	pulled := &podlife.Pulled{Ref: ref, Took: took, Waited: time.Since(requested)}
	id := ref
	found, err := m.lookup(ctx, pod, ref)
	if err != nil || found == nil {
		found, err = m.lookup(ctx, pod, image)
	}
	if err == nil && found != nil {
		pulled.Size, id = int64(found.Size), found.Id
	}
	unknown := m.cfg.Policy.VerifiesUnknown()
	switch {
	case opened != nil && !opened.everybody:
		err = m.records.end(name, id, opened.from)
	case guarded:
		err = errors.Join(m.records.end(name, "", credential{}), m.records.free(name, id, unknown))
	default:
		err = m.records.free(name, id, unknown)
	}
	if err != nil {
		return nil, failureOf(image, err)
	}
	return pulled, nil
}

// share joins the pull of this image with these credentials, or begins it.
func (m *Manager) share(ctx context.Context, spec *cri.ImageSpec, auth *cri.AuthConfig,
	sandbox *cri.PodSandboxConfig) (string, time.Duration, error) {
	key := spec.Image + "\x00" + spec.RuntimeHandler
	if auth != nil {
		key += "\x00" + auth.String()
	}
	m.mu.Lock()
	p := m.pulls[key]
	if p == nil {
		pullCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		p = &pull{cancel: cancel, done: make(chan struct{})}
		m.pulls[key] = p
		go func() {
			m.run(pullCtx, p, &cri.PullImageRequest{
				Image: spec, Auth: auth, SandboxConfig: sandbox,
			})
			m.mu.Lock()
			if m.pulls[key] == p {
				delete(m.pulls, key)
			}
			m.mu.Unlock()
			cancel()
			close(p.done)
		}()
	}
	p.waiters++
	m.mu.Unlock()

	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if p.waiters--; p.waiters == 0 {
			p.cancel()
			if m.pulls[key] == p {
				delete(m.pulls, key) // a cancelled pull must not be joined
			}
		}
	}()
	select {
	case <-p.done:
		return p.ref, p.took, p.err
	case <-ctx.Done():
		return "", 0, ctx.Err()
	}
}

// errTooFast is the error of a pull that exceeds the node's configured rate (L3.112).
var errTooFast = errors.New("pull QPS exceeded")

func (m *Manager) run(ctx context.Context, p *pull, req *cri.PullImageRequest) {
	if p.err = m.slots.Acquire(ctx, 1); p.err != nil {
		return
	}
	defer m.slots.Release(1)
	if m.cfg.Limit != nil && !m.cfg.Limit.Allow() {
		p.err = errTooFast
		return
	}
	p.began = time.Now()
	resp, err := m.cfg.Runtime.PullImage(ctx, req)
	p.took = time.Since(p.began)
	if p.err = err; err == nil {
		p.ref = resp.ImageRef
		if m.cfg.Pulled != nil {
			m.cfg.Pulled()
		}
	}
}

// failureOf gives a failed pull its reason (L3.108, L3.110, L3.111).
func failureOf(image string, err error) *podlife.Failure {
	text := err.Error()
	for _, known := range []struct{ prefix, because string }{
		{"RegistryUnavailable", "the registry is unavailable"},
		{"SignatureValidationFailed", "the signature validation failed"},
	} {
		if _, rest, ok := strings.Cut(text, known.prefix); ok {
			return &podlife.Failure{Reason: known.prefix,
				Message: fmt.Sprintf("image pull failed for %s because %s%s", image, known.because, rest)}
		}
	}
	return &podlife.Failure{Reason: "ErrImagePull", Message: text}
}
