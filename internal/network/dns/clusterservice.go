package dns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// The Service through which pods reach the DNS (N4.13), and the slice that leads to this server.
const (
	serviceNamespace = metav1.NamespaceSystem
	serviceName      = "kube-dns"
	sliceName        = "kube-dns-carob"
	managedBy        = "dns.carob"
	dnsPort          = 53
)

// clusterService makes the Service kube-dns and the EndpointSlice that leads from it to this server, and
// makes them again when somebody removes them. A Service with a selector belongs to somebody else's
// DNS: the slice goes, and nothing else is touched.
type clusterService struct {
	client    kubernetes.Interface
	clusterIP []netip.Addr
	node      string
	at        []netip.AddrPort // where this server listens

	wake chan struct{} // holds one; nothing is in it
	told string        // the last problem that was logged
}

// serviceRetry is the wait after a failure; a change of the Service ends it, too.
const serviceRetry = 5 * time.Second

func (k *clusterService) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *clusterService) run(ctx context.Context) {
	for {
		var again <-chan time.Time
		if err := k.reconcile(ctx); err != nil && ctx.Err() == nil {
			if err.Error() != k.told {
				klog.FromContext(ctx).Error(err, "Pods do not reach carob's DNS through the Service kube-system/kube-dns")
			}
			k.told = err.Error()
			again = time.After(serviceRetry)
		} else {
			k.told = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-again:
		}
	}
}

func (k *clusterService) reconcile(ctx context.Context) error {
	service, err := k.client.CoreV1().Services(serviceNamespace).Get(ctx, serviceName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		service, err = k.client.CoreV1().Services(serviceNamespace).Create(ctx, k.service(), metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("make Service %s: %w", serviceName, err)
	}
	slices := k.client.DiscoveryV1().EndpointSlices(serviceNamespace)
	stored, err := slices.Get(ctx, sliceName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read EndpointSlice %s: %w", sliceName, err)
	}
	there := err == nil
	if len(service.Spec.Selector) > 0 || service.Spec.Type == corev1.ServiceTypeExternalName {
		if there {
			klog.FromContext(ctx).Info("The Service kube-system/kube-dns has a selector: carob's DNS leaves it to its pods")
			if err := slices.Delete(ctx, sliceName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete EndpointSlice %s: %w", sliceName, err)
			}
		}
		return nil
	}
	wanted := k.slice(service)
	switch {
	case !there:
		_, err = slices.Create(ctx, wanted, metav1.CreateOptions{})
	case stored.AddressType != wanted.AddressType: // it cannot change
		err = slices.Delete(ctx, sliceName, metav1.DeleteOptions{})
		if err == nil {
			_, err = slices.Create(ctx, wanted, metav1.CreateOptions{})
		}
	case equality.Semantic.DeepEqual(stored.Endpoints, wanted.Endpoints) &&
		equality.Semantic.DeepEqual(stored.Ports, wanted.Ports) &&
		equality.Semantic.DeepEqual(stored.Labels, wanted.Labels) &&
		equality.Semantic.DeepEqual(stored.OwnerReferences, wanted.OwnerReferences):
		return nil
	default:
		wanted.ResourceVersion = stored.ResourceVersion
		_, err = slices.Update(ctx, wanted, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", sliceName, err)
	}
	return nil
}

// service is what kubeadm makes, without a selector.
func (k *clusterService) service() *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, Name: serviceName, Labels: map[string]string{
			"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP,
			Ports: []corev1.ServicePort{
				{Name: "dns", Port: dnsPort, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(dnsPort)},
				{Name: "dns-tcp", Port: dnsPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(dnsPort)},
			}},
	}
	for _, ip := range k.clusterIP {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, ip.String())
	}
	if len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	return s
}

// slice leads from the ports of the Service to this server.
func (k *clusterService) slice(s *corev1.Service) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, Name: sliceName, Labels: map[string]string{
			discoveryv1.LabelServiceName: serviceName, discoveryv1.LabelManagedBy: managedBy, "k8s-app": "kube-dns"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: s.Name, UID: s.UID,
				Controller: new(true), BlockOwnerDeletion: new(true)}}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	family := corev1.IPv4Protocol
	if len(s.Spec.IPFamilies) > 0 {
		family = s.Spec.IPFamilies[0]
	}
	if family == corev1.IPv6Protocol {
		out.AddressType = discoveryv1.AddressTypeIPv6
	}
	i := slices.IndexFunc(k.at, func(a netip.AddrPort) bool {
		return a.Addr().Is6() == (family == corev1.IPv6Protocol)
	})
	if i < 0 {
		return out
	}
	out.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{k.at[i].Addr().String()}, NodeName: new(k.node),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}}}
	for _, p := range s.Spec.Ports {
		if p.Port == dnsPort && (p.Protocol == corev1.ProtocolUDP || p.Protocol == corev1.ProtocolTCP) {
			out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol),
				Port: new(int32(k.at[i].Port()))})
		}
	}
	return out
}
