// Package networking is the group networking.k8s.io: Ingresses, IngressClasses, NetworkPolicies,
// ServiceCIDRs, and IPAddresses. It never acts on them.
package networking
