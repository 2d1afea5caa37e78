package services

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// typeHasNodePorts reports whether services of this type have node ports.
func typeHasNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// needsNodePorts reports whether each port of s gets a node port without requesting one.
func needsNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort ||
		s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
			(s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts)
}

// needsHealthPort reports whether load balancers check on each node whether it has a pod of s.
func needsHealthPort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// nodePorts returns the node ports of s.
func nodePorts(s *corev1.Service) []int {
	var out []int
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			out = append(out, int(p.NodePort))
		}
	}
	return out
}

// claimPorts allocates the ports that a new or updated service needs; leaves are the ports that old
// has and s no longer needs.
func claimPorts(c *portClaim, s, old *corev1.Service) (leaves []int, err error) {
	switch {
	case !typeHasNodePorts(s):
		if old != nil && typeHasNodePorts(old) {
			leaves = nodePorts(old)
		}
	case old == nil:
		err = firstPorts(c, s)
	default:
		leaves, err = changedPorts(c, s, nodePorts(old))
	}
	if err != nil {
		return nil, err
	}
	switch had := old != nil && needsHealthPort(old); {
	case needsHealthPort(s) && !had:
		err = healthPort(c, s)
	case had && !needsHealthPort(s) && old.Spec.HealthCheckNodePort != 0:
		leaves = append(leaves, int(old.Spec.HealthCheckNodePort))
	}
	return leaves, err
}

// firstPorts allocates the node ports of a new service. The protocols of one port share a number.
func firstPorts(c *portClaim, s *corev1.Service) error {
	shared := map[int32]int{} // of a port of the service
	// Another protocol of a port may request a number in a later entry.
	requested := map[int32]int{}
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 && requested[p.Port] == 0 {
			requested[p.Port] = int(p.NodePort)
		}
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.NodePort == 0 && !needsNodePorts(s) {
			continue
		}
		if n := shared[p.Port]; n != 0 {
			if p.NodePort == 0 {
				p.NodePort = int32(n)
			} else if int(p.NodePort) != n {
				if err := c.take(int(p.NodePort)); err != nil {
					return refusedPort(s, i, int(p.NodePort), err)
				}
			}
			continue
		}
		n := requested[p.Port]
		if n == 0 {
			var err error
			if n, err = c.next(); err != nil {
				return noPort(err)
			}
		} else if err := c.take(n); err != nil {
			return refusedPort(s, i, n, err)
		}
		p.NodePort, shared[p.Port] = int32(n), n
	}
	return nil
}

// changedPorts allocates the additional ports of an updated service.
func changedPorts(c *portClaim, s *corev1.Service, had []int) (leaves []int, err error) {
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		switch n := int(p.NodePort); {
		case n == 0 && !needsNodePorts(s):
		case n == 0:
			if n, err = c.next(); err != nil {
				return nil, noPort(err)
			}
			p.NodePort = int32(n)
		case !slices.Contains(had, n) && !slices.Contains(c.took, n):
			if err = c.take(n); err != nil {
				return nil, refusedPort(s, i, n, err)
			}
		}
	}
	kept := nodePorts(s)
	return slices.DeleteFunc(slices.Clone(had), func(n int) bool { return slices.Contains(kept, n) }), nil
}

func healthPort(c *portClaim, s *corev1.Service) error {
	if n := int(s.Spec.HealthCheckNodePort); n != 0 {
		if err := c.take(n); err != nil {
			return invalid(s, field.Invalid(field.NewPath("spec", "healthCheckNodePort"), n,
				fmt.Sprintf("failed to allocate requested HealthCheck NodePort %d: %v", n, err)))
		}
		return nil
	}
	n, err := c.next()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %d: %w", n, err))
	}
	s.Spec.HealthCheckNodePort = int32(n)
	return nil
}

func refusedPort(s *corev1.Service, i, number int, err error) error {
	return invalid(s, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), number, err.Error()))
}

func noPort(err error) error {
	return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
}
