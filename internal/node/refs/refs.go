// Package refs keeps the config maps, secrets and services that pods of this
// node refer to current: one watch for each object, only while a pod refers to
// it, and one watch of services. The volume manager and spec.Assemble read from
// it. It must never write to the API.
package refs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// linger is how long an object stays watched after its last pod went: the next
// pod of a namespace usually refers to the same ones.
const linger = time.Minute

// servicesWait bounds how long Services waits for the first list of services.
const servicesWait = 10 * time.Second

type kind string

const (
	configMaps kind = "configmaps"
	secrets    kind = "secrets"
)

type key struct {
	kind            kind
	namespace, name string
}

// Store implements spec.Fetcher, volume.Objects and volume.Tokens.
type Store struct {
	client   kubernetes.Interface
	services services
	wg       sync.WaitGroup // one goroutine for each watched object

	mu     sync.Mutex
	closed bool
	held   map[key]*object
	pods   map[types.UID][]key
}

// object is one that is watched.
//
//	Hold ──▶ watched ──last Release──▶ lingering ──linger──▶ forgotten
//	            ▲─────────Hold────────────┘
type object struct {
	tried   chan struct{} // closed when the first list ended, well or not
	cancel  context.CancelFunc
	forget  *time.Timer
	changed map[types.UID]func(types.UID)

	asked bool          // tried is closed: somebody may have seen an older state
	known bool          // value was read at least once
	value metav1.Object // nil: it does not exist
}

// New makes a Store that reads through client.
func New(client kubernetes.Interface) *Store {
	return &Store{
		client:   client,
		services: services{synced: make(chan struct{})},
		held:     make(map[key]*object),
		pods:     make(map[types.UID][]key),
	}
}

// Run watches services until ctx ends, and then ends all watches.
func (s *Store) Run(ctx context.Context) error {
	s.services.run(ctx, s.client)
	s.mu.Lock()
	s.closed = true
	for _, o := range s.held {
		o.stop()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// ConfigMap answers the object, from memory when it is held.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	if v, ok := s.cached(ctx, key{configMaps, namespace, name}); ok {
		return v.(*corev1.ConfigMap), nil
	}
	return s.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Secret answers the object, from memory when it is held.
func (s *Store) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	if v, ok := s.cached(ctx, key{secrets, namespace, name}); ok {
		return v.(*corev1.Secret), nil
	}
	return s.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// cached answers what a watch knows. What it does not know is asked again: the
// object may have been created an instant ago.
func (s *Store) cached(ctx context.Context, k key) (metav1.Object, bool) {
	s.mu.Lock()
	o := s.held[k]
	s.mu.Unlock()
	if o == nil {
		return nil, false
	}
	select {
	case <-o.tried:
	case <-ctx.Done():
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.value, o.known && o.value != nil
}

// Services are those of the namespace, and default/kubernetes (L3.132).
func (s *Store) Services(ctx context.Context, namespace string) ([]*corev1.Service, error) {
	timer := time.NewTimer(servicesWait)
	defer timer.Stop()
	select {
	case <-s.services.synced:
		return s.services.of(namespace), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, errors.New("services have not yet been read at least once, cannot construct envvars") // L3.134
	}
}

// Hold keeps the config maps and secrets that the pod's volumes show current
// until Release. changed is called, from any goroutine and without a lock held,
// for each change of one of them.
func (s *Store) Hold(pod *corev1.Pod, changed func(uid types.UID)) {
	keys := volumeRefs(pod)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.pods[pod.UID]; ok || s.closed {
		return // the volumes of a pod never change
	}
	s.pods[pod.UID] = keys
	for _, k := range keys {
		o := s.held[k]
		if o == nil {
			o = s.watch(k)
		}
		if o.forget != nil {
			o.forget.Stop()
			o.forget = nil
		}
		o.changed[pod.UID] = changed
	}
}

// Release ends Hold.
func (s *Store) Release(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.pods[uid] {
		o := s.held[k]
		if o == nil {
			continue
		}
		delete(o.changed, uid)
		if len(o.changed) == 0 && o.forget == nil {
			o.forget = time.AfterFunc(linger, func() { s.forget(k, o) })
		}
	}
	delete(s.pods, uid)
}

func (s *Store) forget(k key, o *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[k] == o && len(o.changed) == 0 {
		delete(s.held, k)
		o.stop()
	}
}

func (o *object) stop() {
	if o.forget != nil {
		o.forget.Stop()
	}
	o.cancel()
}

// watch begins to watch an object. The caller holds the lock.
func (s *Store) watch(k key) *object {
	ctx, cancel := context.WithCancel(context.Background())
	o := &object{tried: make(chan struct{}), cancel: cancel, changed: make(map[types.UID]func(types.UID))}
	s.held[k] = o
	var once sync.Once
	s.wg.Go(func() {
		follow(ctx, s.source(k), sink{
			tried:   func() { once.Do(func() { s.answer(o) }) },
			replace: func(all []metav1.Object) bool { return s.store(o, pick(all, k)) },
			apply: func(obj metav1.Object, deleted bool) bool {
				switch {
				case obj.GetName() != k.name:
					return false
				case deleted:
					return s.store(o, nil)
				default:
					return s.store(o, obj)
				}
			},
		})
	})
	return o
}

func (s *Store) answer(o *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.asked = true
	close(o.tried)
}

// store keeps a new value and tells the pods. It reports whether the value can't change any more.
func (s *Store) store(o *object, value metav1.Object) (final bool) {
	s.mu.Lock()
	old := o.value
	o.known, o.value = true, value
	var tell []func()
	if o.asked && !same(old, value) {
		for uid, changed := range o.changed {
			tell = append(tell, func() { changed(uid) })
		}
	}
	s.mu.Unlock()
	for _, f := range tell {
		f()
	}
	return immutable(value)
}

func same(a, b metav1.Object) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.GetUID() == b.GetUID() && a.GetResourceVersion() == b.GetResourceVersion() && a.GetResourceVersion() != ""
}

func immutable(obj metav1.Object) bool {
	switch o := obj.(type) {
	case *corev1.ConfigMap:
		return o.Immutable != nil && *o.Immutable
	case *corev1.Secret:
		return o.Immutable != nil && *o.Immutable
	}
	return false
}

func pick(all []metav1.Object, k key) metav1.Object {
	for _, obj := range all {
		if obj.GetName() == k.name {
			return obj
		}
	}
	return nil
}

func (s *Store) source(k key) source {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, k.name).String()
	if k.kind == secrets {
		return sourceOf(s.client.CoreV1().Secrets(k.namespace), only, func(l *corev1.SecretList) []metav1.Object {
			return pointers(l.Items)
		})
	}
	return sourceOf(s.client.CoreV1().ConfigMaps(k.namespace), only, func(l *corev1.ConfigMapList) []metav1.Object {
		return pointers(l.Items)
	})
}

// Token asks for a service account token.
func (s *Store) Token(ctx context.Context, namespace, serviceAccount string, req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return s.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, serviceAccount, req, metav1.CreateOptions{})
}

// volumeRefs are the config maps and secrets that the volumes of a pod show, each once.
func volumeRefs(pod *corev1.Pod) []key {
	var keys []key
	add := func(kind kind, name string) {
		k := key{kind, pod.Namespace, name}
		if slices.Contains(keys, k) {
			return
		}
		keys = append(keys, k)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.ConfigMap != nil:
			add(configMaps, v.ConfigMap.Name)
		case v.Secret != nil:
			add(secrets, v.Secret.SecretName)
		case v.Projected != nil:
			for _, src := range v.Projected.Sources {
				if src.ConfigMap != nil {
					add(configMaps, src.ConfigMap.Name)
				}
				if src.Secret != nil {
					add(secrets, src.Secret.Name)
				}
			}
		}
	}
	return keys
}

// isGone says that a watch must list again.
func isGone(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }
