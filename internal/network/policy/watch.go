package policy

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/core/netplan/policies"
)

// API is where the objects are.
type API = kubernetes.Interface

// Client returns a client for Run, without its own rate limit.
func Client(cfg *rest.Config) (API, error) {
	c := rest.CopyConfig(cfg)
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	c.QPS = -1
	api, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make a client for network policies: %w", err)
	}
	return api, nil
}

// kind is a kind of objects that is watched.
type kind uint8

const (
	ofPolicies kind = iota
	ofPods
	ofNamespaces
)

// watchPolicies follows the policies until ctx ends.
func (e *Enforcer) watchPolicies(ctx context.Context, api API) {
	known := map[string]bool{}
	set := func(np *networkingv1.NetworkPolicy) {
		known[np.Namespace+"/"+np.Name] = true
		if err := e.plan.SetPolicy(np); err != nil {
			klog.FromContext(ctx).Error(err, "A part of a network policy cannot be read, and allows nothing")
		}
	}
	remove := func(np *networkingv1.NetworkPolicy) {
		delete(known, np.Namespace+"/"+np.Name)
		e.plan.DeletePolicy(np.Namespace, np.Name)
	}
	all := api.NetworkingV1().NetworkPolicies(metav1.NamespaceAll)
	run(ctx, e, api, all, ofPolicies, &networkingv1.NetworkPolicy{}, sink[*networkingv1.NetworkPolicy]{
		update: set, remove: remove,
		replace: func(all []*networkingv1.NetworkPolicy) {
			gone := known
			known = map[string]bool{}
			for _, np := range all {
				delete(gone, np.Namespace+"/"+np.Name)
				set(np)
			}
			for key := range gone {
				ns, name, _ := cache.SplitMetaNamespaceKey(key)
				e.plan.DeletePolicy(ns, name)
			}
		},
		after: func() {
			there := e.plan.Policies() > 0
			select { // only the newest answer counts
			case <-e.follow:
			default:
			}
			e.follow <- there
		},
	})
}

// watchOthers follows pods and namespaces while there are policies, until ctx ends.
func (e *Enforcer) watchOthers(ctx context.Context, api API) {
	for e.policiesAre(ctx, true) {
		while, stop := context.WithCancel(ctx)
		var watches sync.WaitGroup
		watches.Go(func() { e.watchNamespaces(while, api) })
		watches.Go(func() { e.watchPods(while, api) })
		over := e.policiesAre(ctx, false)
		stop()
		watches.Wait()
		if over {
			e.forgetOthers()
		}
	}
}

// policiesAre waits until there are policies, or none; false when ctx ends.
func (e *Enforcer) policiesAre(ctx context.Context, want bool) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case there := <-e.follow:
			if there == want {
				return true
			}
		}
	}
}

// forgetOthers drops what is needed only while there are policies.
func (e *Enforcer) forgetOthers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.synced[ofPods], e.synced[ofNamespaces] = false, false
	for id := range e.objects {
		delete(e.objects, id)
		e.update(id)
	}
	for name := range e.namespaces {
		e.plan.DeleteNamespace(name)
	}
	clear(e.namespaces)
	e.settle()
}

func (e *Enforcer) watchNamespaces(ctx context.Context, api API) {
	set := func(n *corev1.Namespace) {
		e.namespaces[n.Name] = true
		e.plan.SetNamespace(n.Name, n.Labels)
	}
	remove := func(name string) {
		delete(e.namespaces, name)
		e.plan.DeleteNamespace(name)
	}
	run(ctx, e, api, api.CoreV1().Namespaces(), ofNamespaces, &corev1.Namespace{}, sink[*corev1.Namespace]{
		update: set, remove: func(n *corev1.Namespace) { remove(n.Name) },
		replace: func(all []*corev1.Namespace) {
			here := map[string]bool{}
			for _, n := range all {
				here[n.Name] = true
				set(n)
			}
			for name := range e.namespaces {
				if !here[name] {
					remove(name)
				}
			}
		},
	})
}

func (e *Enforcer) watchPods(ctx context.Context, api API) {
	set := func(pod *corev1.Pod) {
		o := objectOf(pod)
		e.objects[o.UID] = o
		e.update(o.UID)
	}
	remove := func(id string) {
		switch o := e.objects[id]; {
		case o == nil:
			return
		case len(e.places[id]) > 0:
			gone := *o
			gone.deleted = true
			e.objects[id] = &gone
		default:
			delete(e.objects, id)
		}
		e.update(id)
	}
	run(ctx, e, api, api.CoreV1().Pods(metav1.NamespaceAll), ofPods, &corev1.Pod{}, sink[*corev1.Pod]{
		update: set, remove: func(pod *corev1.Pod) { remove(identityOf(pod)) },
		replace: func(all []*corev1.Pod) {
			here := map[string]bool{}
			for _, pod := range all {
				here[identityOf(pod)] = true
				set(pod)
			}
			for id := range e.objects {
				if !here[id] {
					remove(id)
				}
			}
		},
	})
}

// identityOf is the identity of a pod in the pod network: a static pod has a mirror with another UID in the API.
func identityOf(pod *corev1.Pod) string {
	uid := string(pod.UID)
	if mirrored := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirrored != "" {
		uid = mirrored
	}
	return identity(uid, pod.Namespace, pod.Name)
}

// objectOf keeps the part of a pod that policies need.
func objectOf(pod *corev1.Pod) *object {
	o := &object{Pod: policies.Pod{UID: identityOf(pod), Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels,
		HostNetwork: pod.Spec.HostNetwork,
		Gone:        pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed},
		node: pod.Spec.NodeName}
	ports := func(c *corev1.Container) {
		for _, p := range c.Ports {
			number := protocols[p.Protocol]
			if p.Name != "" && number != 0 && p.ContainerPort > 0 && p.ContainerPort <= math.MaxUint16 {
				o.Ports = append(o.Ports, policies.Port{Name: p.Name, Protocol: number, Port: uint16(p.ContainerPort)})
			}
		}
	}
	for i := range pod.Spec.Containers {
		ports(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers { // those that run together with the others
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			ports(c)
		}
	}
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Zone() == "" {
			o.ips = append(o.ips, a.Unmap())
		}
	}
	return o
}

var protocols = map[corev1.Protocol]uint8{corev1.ProtocolTCP: policies.TCP, corev1.ProtocolUDP: policies.UDP,
	corev1.ProtocolSCTP: policies.SCTP, "": policies.TCP}

// client is what list and watch calls of one kind look like in the typed client.
type client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// run follows one kind until ctx ends.
func run[L runtime.Object, T metav1.Object](ctx context.Context, e *Enforcer, api API, c client[L], k kind,
	example runtime.Object, s sink[T]) {
	s.e, s.kind = e, k
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := c.List(ctx, o)
			e.listed(k, err)
			return list, err
		},
		WatchFuncWithContext: c.Watch,
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, api), example, s,
		cache.ReflectorOptions{Name: fmt.Sprintf("network policies: %T", example)}).RunWithContext(ctx)
}

// listed notes how a list ended.
func (e *Enforcer) listed(k kind, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if delete(e.unlisted, k); err != nil {
		e.unlisted[k] = err
	}
}

// sink is a reflector's store that keeps nothing: it passes changes to the plan. Its functions are
// called with the lock held.
type sink[T metav1.Object] struct {
	e       *Enforcer
	kind    kind
	replace func([]T)
	update  func(T)
	remove  func(T)
	after   func() // nil: nothing
}

func (s sink[T]) do(f func()) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	f()
	if s.after != nil {
		s.after()
	}
	s.e.changed()
}

func (s sink[T]) Add(obj any) error { return s.Update(obj) }

func (s sink[T]) Update(obj any) error {
	o, ok := obj.(T)
	if !ok {
		return fmt.Errorf("unexpected %T in a watch for network policies", obj)
	}
	s.do(func() { s.update(o) })
	return nil
}

func (s sink[T]) Delete(obj any) error {
	o, ok := obj.(T)
	if !ok {
		return fmt.Errorf("unexpected %T in a watch for network policies", obj)
	}
	s.do(func() { s.remove(o) })
	return nil
}

func (s sink[T]) Replace(objs []any, _ string) error {
	all := make([]T, 0, len(objs))
	for _, obj := range objs {
		o, ok := obj.(T)
		if !ok {
			return fmt.Errorf("unexpected %T in a list for network policies", obj)
		}
		all = append(all, o)
	}
	s.do(func() {
		s.replace(all)
		s.e.synced[s.kind] = true
	})
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	s.e.settle()
	return nil
}

func (s sink[T]) Resync() error { return nil }
