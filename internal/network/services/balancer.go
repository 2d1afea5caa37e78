package services

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"carob/internal/base/confirm"
	"carob/internal/core/netplan/addresspool"
	core "carob/internal/core/netplan/services"
)

// balancer writes the addresses of Services of type LoadBalancer into their status, in parallel
// to the loop that writes the rules: addresses of a pool, or the node's.
type balancer struct {
	client kubernetes.Interface // with the rights of the service-controller
	pool   *addresspool.State   // nil: there is none; used by the loop only
	wake   chan struct{}
	later  later // wakes, when writes have failed

	mu   sync.Mutex
	own  []netip.Addr // addresses that the node has or had since the start
	todo map[types.NamespacedName]write
}

type write struct {
	uid  types.UID
	want []corev1.LoadBalancerIngress
}

func newBalancer(client kubernetes.Interface, p *addresspool.Pool) *balancer {
	b := &balancer{client: client, wake: make(chan struct{}, 1), todo: map[types.NamespacedName]write{}}
	b.later = later{wait: writeAgain, do: func() { poke(b.wake) }}
	if p != nil {
		b.pool = addresspool.New(*p)
	}
	return b
}

// look records what to write for Services that have changed, and returns the events to record.
func (b *balancer) look(in []input, node []netip.Addr) []addresspool.Event {
	if b.client == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pool != nil {
		return b.fromPool(in, node)
	}
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
	return nil
}

func (b *balancer) fromPool(in []input, node []netip.Addr) []addresspool.Event {
	inputs := make([]addresspool.Input, len(in))
	for n, i := range in {
		delete(b.todo, i.Name)
		inputs[n] = addresspool.Input{Name: i.Name, Service: i.Service}
	}
	writes, events := b.pool.Update(inputs, node)
	for _, w := range writes {
		b.todo[w.Name] = write{w.UID, w.Ingress}
		poke(b.wake)
	}
	return events
}

// addresses are the addresses of the pool that Services have.
func (b *balancer) addresses() []netip.Addr {
	if b.pool == nil {
		return nil
	}
	return b.pool.Addresses()
}

// announceAgain is the wait before a failed announcement is repeated.
const announceAgain = 30 * time.Second

// announce announces the addresses of the pool to the node's neighbours.
func (p *Proxy) announce(ctx context.Context, node []netip.Addr) {
	var others []netip.Addr // the kernel itself answers for the node's addresses
	for _, a := range p.balance.addresses() {
		if !slices.Contains(node, a) {
			others = append(others, a)
		}
	}
	why := ""
	if err := p.announcer.Update(others, p.cfg.Links, node); err != nil {
		why = err.Error()
		p.announceAgain.start()
		if why != p.unannounced {
			klog.FromContext(ctx).Error(err, "Cannot announce addresses of load balancers; trying again")
		}
	}
	p.unannounced = why
}

// recordEvents records events of Services.
func (p *Proxy) recordEvents(list []addresspool.Event) {
	for _, n := range list {
		if s := p.feed.service(n.Name); s != nil && p.cfg.Events != nil {
			p.cfg.Events.Event(s, n.Type, n.Reason, n.Text)
		}
	}
}

// writeAgain is the wait before failed writes are repeated.
const writeAgain = time.Second

// run writes until ctx is done. Writes that fail are repeated together.
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
	b.later.start()
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
	api := b.client.CoreV1().Services(name.Namespace)
	_, err = api.Patch(ctx, name.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return confirm.Removed(ctx, w.uid, err, confirm.By(api.Get, name.Name)) // or it was replaced
}
