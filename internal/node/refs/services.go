package refs

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// services is the set of all services, by namespace and name.
type services struct {
	synced chan struct{} // closed after the first list

	mu   sync.Mutex
	byNS map[string]map[string]*corev1.Service
}

func (s *services) run(ctx context.Context, client kubernetes.Interface) {
	var once sync.Once
	src := sourceOf(client.CoreV1().Services(metav1.NamespaceAll), "", func(l *corev1.ServiceList) []metav1.Object {
		return pointers(l.Items)
	})
	follow(ctx, src, sink{
		tried: func() {}, live: func(bool) {},
		replace: func(all []metav1.Object) bool {
			s.mu.Lock()
			s.byNS = make(map[string]map[string]*corev1.Service)
			for _, obj := range all {
				s.put(obj)
			}
			s.mu.Unlock()
			once.Do(func() { close(s.synced) })
			return false
		},
		apply: func(obj metav1.Object, deleted bool) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			if deleted {
				delete(s.byNS[obj.GetNamespace()], obj.GetName())
			} else {
				s.put(obj)
			}
			return false
		},
	})
}

func (s *services) put(obj metav1.Object) {
	ns := s.byNS[obj.GetNamespace()]
	if ns == nil {
		ns = make(map[string]*corev1.Service)
		s.byNS[obj.GetNamespace()] = ns
	}
	ns[obj.GetName()] = obj.(*corev1.Service)
}

// of are the services of a namespace by name, and default/kubernetes.
func (s *services) of(namespace string) []*corev1.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Collect(maps.Values(s.byNS[namespace]))
	if namespace != corev1.NamespaceDefault {
		if api := s.byNS[corev1.NamespaceDefault]["kubernetes"]; api != nil {
			list = append(list, api)
		}
	}
	return list
}
