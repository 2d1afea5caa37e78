package rules

import (
	"fmt"
	"net"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// specialIP returns why an address cannot belong to another host; empty if it can.
func specialIP(ip string) string {
	a := netutils.ParseIPSloppy(ip)
	switch {
	case a == nil:
		return "must be a valid IP address"
	case a.IsUnspecified():
		return fmt.Sprintf("may not be unspecified (%v)", ip)
	case a.IsLoopback():
		return "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case a.IsLinkLocalUnicast():
		return "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case a.IsLinkLocalMulticast():
		return "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
	}
	return ""
}

// LegacyIP validates an address in a field that allowed other forms before; those in kept, of the stored object, may
// stay. The library searches a list for each address: two objects of the largest size would take minutes.
func LegacyIP(at *field.Path, ip string, kept sets.Set[string]) field.ErrorList {
	if kept.Has(ip) {
		return nil
	}
	return validation.IsValidIPForLegacyField(at, ip, true, nil)
}

// LegacyCIDR is LegacyIP for a CIDR block.
func LegacyCIDR(at *field.Path, cidr string, kept sets.Set[string]) field.ErrorList {
	if kept.Has(cidr) {
		return nil
	}
	return validation.IsValidCIDRForLegacyField(at, cidr, true, nil)
}

// IsIP reports whether s is an IPv4 or IPv6 address.
func IsIP(s string) bool { return net.ParseIP(s) != nil }

// NonSpecialIP rejects addresses that mean this host or a whole link.
func NonSpecialIP(ip string, at *field.Path) field.ErrorList {
	if reason := specialIP(ip); reason != "" {
		return field.ErrorList{field.Invalid(at, ip, reason)}
	}
	return nil
}
