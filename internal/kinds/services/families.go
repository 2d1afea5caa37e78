package services

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

func familyOf(ip netip.Addr) corev1.IPFamily {
	if ip.Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// parseIP also accepts forms that were valid once, such as leading zeros.
func parseIP(s string) (netip.Addr, error) {
	ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	if !ok {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return ip.Unmap(), nil
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// settled reports whether a service with PreferDualStack keeps the families that it has: it gains
// or loses one only on request.
func settled(s, old *corev1.Service) bool {
	if old == nil || !needsIP(s) || s.Spec.Type != old.Spec.Type ||
		ptr.Deref(s.Spec.IPFamilyPolicy, "") != corev1.IPFamilyPolicyPreferDualStack {
		return false
	}
	if p := old.Spec.IPFamilyPolicy; p != nil && *p != corev1.IPFamilyPolicyPreferDualStack {
		return false
	}
	return slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies)
}

// settleFamilies completes ipFamilyPolicy and ipFamilies of a service with addresses, and returns
// errors for families that the cluster does not support. A service keeps its policy; only a client
// that sets another one moves it between one family and two. has are the families of the cluster,
// the default first.
func settleFamilies(s, old *corev1.Service, has []corev1.IPFamily) field.ErrorList {
	at, sp := field.NewPath("spec"), &s.Spec
	if !needsIP(s) || settled(s, old) {
		return nil
	}
	// Another controller may manage these: no selector, and no cluster IP.
	foreign := headless(s) && len(sp.Selector) == 0
	if sp.IPFamilyPolicy == nil {
		switch {
		case old != nil && old.Spec.IPFamilyPolicy != nil:
			sp.IPFamilyPolicy = new(*old.Spec.IPFamilyPolicy)
		case foreign:
			sp.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
		default:
			sp.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
		}
	}
	if errs := ValidateServiceClusterIPs(s, old); len(errs) > 0 {
		return errs
	}
	single := *sp.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	var errs field.ErrorList
	policy := func(message string) {
		errs = append(errs, field.Invalid(at.Child("ipFamilyPolicy"), sp.IPFamilyPolicy, message))
	}
	switch {
	case old == nil:
	case single:
		// A request for one family is enough to release the second.
		if len(sp.ClusterIPs) > 1 && slices.Equal(sp.ClusterIPs, old.Spec.ClusterIPs) {
			sp.ClusterIPs = sp.ClusterIPs[:1]
		}
		if len(sp.IPFamilies) > 1 && slices.Equal(sp.IPFamilies, old.Spec.IPFamilies) {
			sp.IPFamilies = sp.IPFamilies[:1]
		}
	default:
		if n := len(sp.ClusterIPs); n > 0 && n < len(old.Spec.ClusterIPs) {
			policy("must be 'SingleStack' to release the secondary cluster IP")
		}
		if n := len(sp.IPFamilies); n > 0 && n < len(old.Spec.IPFamilies) {
			policy("must be 'SingleStack' to release the secondary IP family")
		}
	}
	if single && len(sp.ClusterIPs) == 2 {
		policy("must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified")
	}
	if single && len(sp.IPFamilies) == 2 {
		policy("must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified")
	}
	for i := len(sp.IPFamilies); i < len(sp.ClusterIPs); i++ {
		ip, err := parseIP(sp.ClusterIPs[i])
		if err != nil {
			break // "None", otherwise validation rejects it
		}
		if f := familyOf(ip); slices.Contains(has, f) {
			sp.IPFamilies = append(sp.IPFamilies, f)
		} else {
			errs = append(errs,
				field.Invalid(at.Child("clusterIPs").Index(i), sp.ClusterIPs,
					fmt.Sprintf("%s is not configured on this cluster", f)))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if !foreign {
		if *sp.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(has) < 2 {
			policy("this cluster is not configured for dual-stack services")
		}
		for i, f := range sp.IPFamilies {
			if !slices.Contains(has, f) {
				errs = append(errs, field.Invalid(at.Child("ipFamilies").Index(i), f, "not configured on this cluster"))
			}
		}
		if len(errs) > 0 {
			return errs
		}
	}
	if len(sp.IPFamilies) == 0 {
		sp.IPFamilies = []corev1.IPFamily{has[0]}
	}
	if len(sp.IPFamilies) == 1 && !single && (foreign || len(has) == 2) {
		sp.IPFamilies = append(sp.IPFamilies, otherFamily(sp.IPFamilies[0]))
	}
	return nil
}
