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

// The Service through which pods reach the DNS server (N4.13), and its EndpointSlice.
const (
	serviceNamespace = metav1.NamespaceSystem
	serviceName      = "kube-dns"
	sliceName        = "kube-dns-carob"
	secondSliceName  = "kube-dns-carob-second" // of the Service's second family
	managedBy        = "dns.carob"
	dnsPort          = 53
)

// clusterService creates the Service kube-dns and the EndpointSlice with the address of this
// server, and creates them again if they are removed. A Service with a selector belongs to
// another DNS server: then it removes the slice and changes nothing else.
type clusterService struct {
	client    kubernetes.Interface
	clusterIP []netip.Addr
	node      string
	at        []netip.AddrPort // where this server listens

	wake   chan struct{} // holds one; nothing is in it
	logged string        // the last problem in the log
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
			if err.Error() != k.logged {
				klog.FromContext(ctx).Error(err, "Pods do not reach carob's DNS through the Service kube-system/kube-dns")
			}
			k.logged = err.Error()
			again = time.After(serviceRetry)
		} else {
			k.logged = ""
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
	var wanted []*discoveryv1.EndpointSlice
	if len(service.Spec.Selector) == 0 && service.Spec.Type != corev1.ServiceTypeExternalName {
		if service, err = k.complete(ctx, service); err != nil {
			return fmt.Errorf("give Service %s its second address: %w", serviceName, err)
		}
		for i := range max(1, len(service.Spec.IPFamilies)) {
			wanted = append(wanted, k.slice(service, i))
		}
	}
	for i, name := range []string{sliceName, secondSliceName} {
		var of *discoveryv1.EndpointSlice
		if i < len(wanted) {
			of = wanted[i]
		}
		if err := k.keep(ctx, name, of); err != nil {
			return fmt.Errorf("write EndpointSlice %s: %w", name, err)
		}
	}
	return nil
}

// complete gives a Service that was made when the cluster had one range of services the address of the second one.
func (k *clusterService) complete(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	if have := s.Spec.ClusterIPs; len(have) != 1 || len(k.clusterIP) != 2 || have[0] != k.clusterIP[0].String() {
		return s, nil
	}
	more := s.DeepCopy()
	more.Spec.ClusterIPs, more.Spec.IPFamilies = k.service().Spec.ClusterIPs, nil
	more.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	return k.client.CoreV1().Services(serviceNamespace).Update(ctx, more, metav1.UpdateOptions{})
}

// keep changes a stored slice to the wanted one; nil: there is none.
func (k *clusterService) keep(ctx context.Context, name string, wanted *discoveryv1.EndpointSlice) error {
	slices := k.client.DiscoveryV1().EndpointSlices(serviceNamespace)
	stored, err := slices.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	there := err == nil
	switch {
	case wanted == nil && !there:
		return nil
	case wanted == nil:
		klog.FromContext(ctx).Info("The Service kube-system/kube-dns is not served by carob's DNS any more", "slice", name)
		if err := slices.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	case !there:
		_, err = slices.Create(ctx, wanted, metav1.CreateOptions{})
	case stored.AddressType != wanted.AddressType: // it cannot change
		err = slices.Delete(ctx, name, metav1.DeleteOptions{})
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
	return err
}

// service is the Service that kubeadm creates, without a selector.
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
	if len(s.Spec.ClusterIPs) == 2 {
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}
	if len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	return s
}

// slice is the EndpointSlice of the Service with this server's address of its i-th family.
func (k *clusterService) slice(s *corev1.Service, i int) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, Name: sliceName, Labels: map[string]string{
			discoveryv1.LabelServiceName: serviceName, discoveryv1.LabelManagedBy: managedBy, "k8s-app": "kube-dns"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: s.Name, UID: s.UID,
				Controller: new(true), BlockOwnerDeletion: new(true)}}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if i > 0 {
		out.Name = secondSliceName
	}
	family := corev1.IPv4Protocol
	if i < len(s.Spec.IPFamilies) {
		family = s.Spec.IPFamilies[i]
	}
	if family == corev1.IPv6Protocol {
		out.AddressType = discoveryv1.AddressTypeIPv6
	}
	at := slices.IndexFunc(k.at, func(a netip.AddrPort) bool {
		return a.Addr().Is6() == (family == corev1.IPv6Protocol)
	})
	if at < 0 {
		return out
	}
	out.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{k.at[at].Addr().String()}, NodeName: new(k.node),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}}}
	for _, p := range s.Spec.Ports {
		if p.Port == dnsPort && (p.Protocol == corev1.ProtocolUDP || p.Protocol == corev1.ProtocolTCP) {
			out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol),
				Port: new(int32(k.at[at].Port()))})
		}
	}
	return out
}
