// Package refs keeps the API objects that pods of this node refer to current:
// one watch for each config map, secret and trust bundle, for the trust bundles
// of each signer, and for the node's certificate requests, only while a pod
// refers to it, and one watch of services. The volume manager and spec.Assemble
// read from it. The only writes to the API are requests for tokens and certificates of pods.
//
// Contract: docs/spec/pod-lifecycle.md.
package refs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// linger is how long an object stays watched after its last pod has gone: the next pod of a namespace usually refers to
// the same objects.
const linger = time.Minute

// absenceTrusted is how long a read that found nothing counts while a watch shows no object either. It bounds the
// effect of an event that is lost.
const absenceTrusted = 2 * time.Minute

// answerTime bounds a request, and how long a watch takes to open, if the API server accepts it and never answers. The
// API server itself ends requests after a minute.
const answerTime = 90 * time.Second

// servicesWait bounds how long Services waits for the first list of services.
const servicesWait = 10 * time.Second

type kind string

const (
	configMaps kind = "configmaps"
	secrets    kind = "secrets"
	bundles    kind = "clustertrustbundles"
	signers    kind = "clustertrustbundles of a signer"
	requests   kind = "podcertificaterequests of a node"
)

// key names what is watched: one object by its name, or the objects of a signer or a node.
type key struct {
	kind            kind
	namespace, name string
}

// Store implements spec.Fetcher, volume.Objects, volume.Tokens and volume.Certificates.
type Store struct {
	client   kubernetes.Interface
	services services
	// standalone: there is no API server, and nothing is watched.
	standalone bool
	wg         sync.WaitGroup // one goroutine for each watch

	mu     sync.Mutex
	closed bool
	held   map[key]*watched
	pods   map[holder][]key
}

// holder is who refers to objects: the volumes of a pod, or one of its containers, which waits for an object.
type holder struct {
	pod       types.UID
	container string // empty: the volumes
}

// watched is an object, or a set of objects, that is watched.
//
//	Hold ──▶ watched ──last Release──▶ lingering ──linger──▶ forgotten
//	            ▲─────────Hold────────────┘
type watched struct {
	tried   chan struct{} // closed when the first list has ended, with or without an error
	cancel  context.CancelFunc
	forget  *time.Timer
	changed map[holder]func(types.UID)

	mayBeOutdated bool    // tried is closed: a reader may have seen an older state
	ended         bool    // the object is immutable, and not watched any more
	objects       objects // empty: none exists
	live          bool    // the watch is open: changes will be shown

	// A read found that none existed. Pods that came later must read again: a watch may lag behind what their creator
	// saw.
	holds  int // counts the pods that came
	absent struct {
		holds int // holds when the read began
		until time.Time
	}
}

// missing reports whether no object exists, without a request. The caller holds the lock.
func (o *watched) missing(now time.Time) bool {
	return len(o.objects) == 0 && o.live && o.absent.holds == o.holds && now.Before(o.absent.until)
}

// foundNone records that a read that began after so many holds found no object. The caller holds the lock.
func (o *watched) foundNone(holds int, began time.Time) {
	o.absent.holds, o.absent.until = max(o.absent.holds, holds), began.Add(absenceTrusted)
}

// objects are what a watch shows.
type objects map[types.NamespacedName]metav1.Object

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// New makes a Store that reads through client.
func New(client kubernetes.Interface) *Store {
	return &Store{
		client:   client,
		services: services{synced: make(chan struct{})},
		held:     make(map[key]*watched),
		pods:     make(map[holder][]key),
	}
}

// NewStandalone makes a Store of an agent without an API server: there are no services, and client finds no objects.
func NewStandalone(client kubernetes.Interface) *Store {
	s := New(client)
	s.standalone = true
	close(s.services.synced)
	return s
}

// Run watches services until ctx ends, and then ends all watches.
func (s *Store) Run(ctx context.Context) error {
	if s.standalone {
		<-ctx.Done()
	} else {
		s.services.run(ctx, s.client)
	}
	s.mu.Lock()
	s.closed = true
	for _, o := range s.held {
		o.stop()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// ConfigMap returns the object, from the cache if it is held.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	return find[*corev1.ConfigMap](ctx, s, key{configMaps, namespace, name}, s.client.CoreV1().ConfigMaps(namespace))
}

// VolumeClaim reads the claim from the API server.
func (s *Store) VolumeClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return s.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// PersistentVolume reads the volume from the API server.
func (s *Store) PersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return s.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}

// Secret returns the object, from the cache if it is held.
func (s *Store) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return find[*corev1.Secret](ctx, s, key{secrets, namespace, name}, s.client.CoreV1().Secrets(namespace))
}

// TrustBundle returns the object, from the cache if it is held.
func (s *Store) TrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	return find[*certificatesv1.ClusterTrustBundle](ctx, s, key{kind: bundles, name: name},
		s.client.CertificatesV1().ClusterTrustBundles())
}

// TrustBundles returns all bundles of the signer, from the cache if they are held.
func (s *Store) TrustBundles(ctx context.Context, signer string) ([]*certificatesv1.ClusterTrustBundle, error) {
	k := key{kind: signers, name: signer}
	var list []*certificatesv1.ClusterTrustBundle
	known, none := s.cached(ctx, k)
	if len(known) > 0 || none == nil {
		for _, o := range known {
			list = append(list, o.(*certificatesv1.ClusterTrustBundle))
		}
		return list, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	l, err := s.client.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{FieldSelector: k.selector()})
	if err != nil {
		return nil, err
	}
	for i := range l.Items {
		if l.Items[i].Spec.SignerName == signer {
			list = append(list, &l.Items[i])
		}
	}
	if len(list) == 0 {
		none()
	}
	return list, nil
}

// find returns an object from a watch's cache, for reading only, or reads it.
func find[T metav1.Object](ctx context.Context, s *Store, k key, from interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
}) (T, error) {
	known, none := s.cached(ctx, k)
	if o, ok := known[types.NamespacedName{Namespace: k.namespace, Name: k.name}]; ok {
		return o.(T), nil
	}
	if none == nil {
		var nothing T
		return nothing, apierrors.NewNotFound(k.resource(), k.name)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	o, err := from.Get(ctx, k.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		none()
	}
	return o, err
}

// cached returns what a watch's cache shows. What is not there must be requested unless none is nil: it may have just
// been created. none is to be called if the request finds nothing.
func (s *Store) cached(ctx context.Context, k key) (_ objects, none func()) {
	s.mu.Lock()
	o := s.held[k]
	s.mu.Unlock()
	if o == nil {
		return nil, func() {}
	}
	select {
	case <-o.tried:
	case <-ctx.Done():
		return nil, func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, holds := time.Now(), o.holds
	if o.missing(now) {
		return nil, nil
	}
	return o.objects, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		o.foundNone(holds, now)
	}
}

// Services are the services of the namespace, and default/kubernetes (L3.132).
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

// Hold keeps the objects that the pod's volumes show current until Release. changed is called, from any goroutine and
// without a lock held, for each change of one of them.
func (s *Store) Hold(pod *corev1.Pod, changed func(uid types.UID)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := holder{pod: pod.UID}
	if _, ok := s.pods[by]; !ok { // the volumes of a pod never change
		s.hold(by, volumeRefs(pod), changed)
	}
}

// hold is Hold with the lock held.
func (s *Store) hold(by holder, keys []key, changed func(uid types.UID)) {
	if s.closed {
		return
	}
	s.pods[by] = keys
	for _, k := range keys {
		o := s.held[k]
		switch {
		case o == nil:
			o = s.watch(k)
		case o.ended: // another object may have the name by now
			o = s.watchAgain(k, o)
		}
		if o.forget != nil {
			o.forget.Stop()
			o.forget = nil
		}
		o.changed[by] = changed
		o.holds++
	}
}

// Release ends Hold and Await.
func (s *Store) Release(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for by := range s.pods {
		if by.pod == uid {
			s.release(by)
		}
	}
}

// release ends one hold. The caller holds the lock.
func (s *Store) release(by holder) {
	for _, k := range s.pods[by] {
		o := s.held[k]
		if o == nil {
			continue
		}
		delete(o.changed, by)
		if len(o.changed) == 0 && o.forget == nil {
			o.forget = time.AfterFunc(linger, func() { s.forget(k, o) })
		}
	}
	delete(s.pods, by)
}

func (s *Store) forget(k key, o *watched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[k] == o && len(o.changed) == 0 {
		delete(s.held, k)
		o.stop()
	}
}

func (o *watched) stop() {
	if o.forget != nil {
		o.forget.Stop()
	}
	o.cancel()
}

// watch begins to watch an object. The caller holds the lock.
func (s *Store) watch(k key) *watched {
	ctx, cancel := context.WithCancel(context.Background())
	o := &watched{tried: make(chan struct{}), cancel: cancel, changed: make(map[holder]func(types.UID))}
	s.held[k] = o
	var once sync.Once
	s.wg.Go(func() {
		follow(ctx, s.source(k), sink{
			tried: func() { once.Do(func() { s.answer(o) }) },
			live: func(live bool) {
				s.mu.Lock()
				o.live = live
				s.mu.Unlock()
			},
			replace: func(all []metav1.Object) bool {
				now := make(objects, len(all))
				for _, obj := range all {
					if k.shows(obj) {
						now[nameOf(obj)] = obj
					}
				}
				return s.store(o, now)
			},
			apply: func(obj metav1.Object, deleted bool) bool {
				s.mu.Lock()
				now := maps.Clone(o.objects) // readers hold the old one
				s.mu.Unlock()
				if deleted || !k.shows(obj) {
					delete(now, nameOf(obj))
				} else {
					now[nameOf(obj)] = obj
				}
				return s.store(o, now)
			},
		})
	})
	return o
}

// watchAgain reads an immutable object again, for a new pod. Pods that hold it are informed only if it has changed. The
// caller holds the lock.
func (s *Store) watchAgain(k key, old *watched) *watched {
	old.stop()
	o := s.watch(k)
	if len(old.changed) > 0 {
		o.changed, o.objects, o.mayBeOutdated = old.changed, old.objects, true
	}
	return o
}

func (s *Store) answer(o *watched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.mayBeOutdated = true
	close(o.tried)
}

// store stores the current object and wakes the pods. It reports whether the object can't change
// any more.
func (s *Store) store(o *watched, now objects) (final bool) {
	s.mu.Lock()
	old := o.objects
	o.objects = now
	var notify []func()
	for by, changed := range o.changed {
		if o.mayBeOutdated && concerns(by.pod, old, now) {
			notify = append(notify, func() { changed(by.pod) })
		}
	}
	for _, obj := range now {
		o.ended = o.ended || immutable(obj)
	}
	final = o.ended
	s.mu.Unlock()
	for _, f := range notify {
		f()
	}
	return final
}

// concerns reports whether a pod that holds the objects must be informed of a change.
func concerns(uid types.UID, old, now objects) bool {
	of := func(obj metav1.Object) bool {
		req, ok := obj.(*certificatesv1.PodCertificateRequest)
		return !ok || req.Spec.PodUID == uid
	}
	for name, obj := range now {
		if before, ok := old[name]; of(obj) && (!ok || !sameVersion(before, obj)) {
			return true
		}
	}
	for name, obj := range old {
		if _, ok := now[name]; of(obj) && !ok {
			return true
		}
	}
	return false
}

func sameVersion(a, b metav1.Object) bool {
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

// shows reports whether an object matches the key. The server's selection is not trusted.
func (k key) shows(obj metav1.Object) bool {
	switch o := obj.(type) {
	case *certificatesv1.ClusterTrustBundle:
		if k.kind == signers {
			return o.Spec.SignerName == k.name
		}
	case *certificatesv1.PodCertificateRequest:
		return string(o.Spec.NodeName) == k.name
	}
	return obj.GetName() == k.name
}

// resource is what the key's objects are called in errors.
func (k key) resource() schema.GroupResource {
	switch k.kind {
	case bundles, signers:
		return certificatesv1.Resource("clustertrustbundles")
	case requests:
		return certificatesv1.Resource("podcertificaterequests")
	case configMaps, secrets:
	}
	return corev1.Resource(string(k.kind))
}

// selector is the field selector of the key.
func (k key) selector() string {
	field := metav1.ObjectNameField
	switch k.kind {
	case signers:
		field = "spec.signerName"
	case requests:
		field = "spec.nodeName"
	case configMaps, secrets, bundles:
	}
	return fields.OneTermEqualSelector(field, k.name).String()
}

func (s *Store) source(k key) source {
	only := k.selector()
	switch k.kind {
	case secrets:
		return sourceOf(s.client.CoreV1().Secrets(k.namespace), only, func(l *corev1.SecretList) []metav1.Object {
			return pointers(l.Items)
		})
	case bundles, signers:
		return sourceOf(s.client.CertificatesV1().ClusterTrustBundles(), only,
			func(l *certificatesv1.ClusterTrustBundleList) []metav1.Object {
				return pointers(l.Items)
			})
	case requests:
		return sourceOf(s.client.CertificatesV1().PodCertificateRequests(metav1.NamespaceAll), only,
			func(l *certificatesv1.PodCertificateRequestList) []metav1.Object {
				return pointers(l.Items)
			})
	case configMaps:
	}
	return sourceOf(s.client.CoreV1().ConfigMaps(k.namespace), only, func(l *corev1.ConfigMapList) []metav1.Object {
		return pointers(l.Items)
	})
}

// Token requests a service account token.
func (s *Store) Token(ctx context.Context, namespace, serviceAccount string,
	req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return s.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, serviceAccount, req, metav1.CreateOptions{})
}

// volumeRefs are what the volumes of a pod show, each once.
func volumeRefs(pod *corev1.Pod) []key {
	var keys []key
	add := func(k key) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.ConfigMap != nil:
			add(key{configMaps, pod.Namespace, v.ConfigMap.Name})
		case v.Secret != nil:
			add(key{secrets, pod.Namespace, v.Secret.SecretName})
		case v.Projected != nil:
			for _, src := range v.Projected.Sources {
				if src.ConfigMap != nil {
					add(key{configMaps, pod.Namespace, src.ConfigMap.Name})
				}
				if src.Secret != nil {
					add(key{secrets, pod.Namespace, src.Secret.Name})
				}
				if b := src.ClusterTrustBundle; b != nil && b.Name != nil {
					add(key{kind: bundles, name: *b.Name})
				} else if b != nil && b.SignerName != nil && b.LabelSelector != nil {
					add(key{kind: signers, name: *b.SignerName})
				}
				if src.PodCertificate != nil {
					add(key{kind: requests, name: pod.Spec.NodeName})
				}
			}
		}
	}
	return keys
}

// isGone reports whether a watch must list again.
func isGone(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }
