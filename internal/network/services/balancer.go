package services

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	core "carob/internal/core/netplan/services"
)

// balancer writes the node's addresses into the status of Services of type LoadBalancer, beside the
// loop that writes the rules.
type balancer struct {
	client kubernetes.Interface // with the rights of the service-controller
	wake   chan struct{}

	mu   sync.Mutex
	own  []netip.Addr // addresses that the node has or had since the start
	todo map[types.NamespacedName]write
}

type write struct {
	uid  types.UID
	want []corev1.LoadBalancerIngress
}

func newBalancer(client kubernetes.Interface) *balancer {
	return &balancer{client: client, wake: make(chan struct{}, 1), todo: map[types.NamespacedName]write{}}
}

// look notes what to write for Services that have changed.
func (b *balancer) look(in []input, node []netip.Addr) {
	if b.client == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range node {
		if !slices.Contains(b.own, a) {
			b.own = append(b.own, a)
		}
	}
	for _, i := range in {
		delete(b.todo, i.Name)
		if i.Service == nil {
			continue
		}
		if want, change := core.Ingress(i.Service, node, b.own); change {
			b.todo[i.Name] = write{i.Service.UID, want}
			poke(b.wake)
		}
	}
}

// run writes until ctx is done. A write that fails is repeated after a second.
func (b *balancer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		}
		b.mu.Lock()
		todo := b.todo
		b.todo = map[types.NamespacedName]write{}
		b.mu.Unlock()
		for name, w := range todo { // any order: each Service by itself
			if err := b.write(ctx, name, w); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err,
					"Cannot write the load balancer's addresses of a Service; trying again",
					"service", name)
				b.again(name, w)
			}
		}
	}
}

func (b *balancer) again(name types.NamespacedName, w write) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, newer := b.todo[name]; !newer {
		b.todo[name] = w
	}
	time.AfterFunc(time.Second, func() { poke(b.wake) })
}

func (b *balancer) write(ctx context.Context, name types.NamespacedName, w write) error {
	ingress := w.want
	if ingress == nil {
		ingress = []corev1.LoadBalancerIngress{}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.uid},
		"status": map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}})
	if err != nil {
		return err
	}
	_, err = b.client.CoreV1().Services(name.Namespace).Patch(ctx, name.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it is gone, or another one
		return nil
	}
	return err
}
