package services

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func familyOf(ip netip.Addr) corev1.IPFamily {
	if ip.Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// settleFamilies completes ipFamilyPolicy and ipFamilies of a service that has
// addresses, and says what the cluster can't do of them. A service keeps the policy
// it has; only a client that names another moves it between one family and two.
// has are the families of the cluster, the default first.
func settleFamilies(s, old *corev1.Service, has []corev1.IPFamily) field.ErrorList {
	at, sp := field.NewPath("spec"), &s.Spec
	// Somebody else may speak for these: no selector, and no address of the cluster's.
	foreign := headless(s) && len(sp.Selector) == 0
	if sp.IPFamilyPolicy == nil {
		sp.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
		if foreign {
			sp.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		}
	}
	single := *sp.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	var errs field.ErrorList
	policy := func(message string) {
		errs = append(errs, field.Invalid(at.Child("ipFamilyPolicy"), sp.IPFamilyPolicy, message))
	}
	if old != nil && single {
		// Asking for one family is enough to give back the second.
		if len(sp.ClusterIPs) > 1 && slices.Equal(sp.ClusterIPs, old.Spec.ClusterIPs) {
			sp.ClusterIPs = sp.ClusterIPs[:1]
		}
		if len(sp.IPFamilies) > 1 && slices.Equal(sp.IPFamilies, old.Spec.IPFamilies) {
			sp.IPFamilies = sp.IPFamilies[:1]
		}
	}
	if old != nil && !single {
		if len(old.Spec.ClusterIPs) == 2 && len(sp.ClusterIPs) == 1 && sp.ClusterIPs[0] == old.Spec.ClusterIPs[0] {
			policy("must be 'SingleStack' to release the secondary cluster IP")
		}
		if len(old.Spec.IPFamilies) == 2 && len(sp.IPFamilies) == 1 && sp.IPFamilies[0] == old.Spec.IPFamilies[0] {
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
		ip, err := netip.ParseAddr(sp.ClusterIPs[i])
		if err != nil {
			break // "None", or validation refuses it
		}
		if f := familyOf(ip); slices.Contains(has, f) {
			sp.IPFamilies = append(sp.IPFamilies, f)
		} else {
			errs = append(errs, field.Invalid(at.Child("clusterIPs").Index(i), sp.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", f)))
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
