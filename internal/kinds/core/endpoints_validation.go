package core

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func validateEndpoints(e *corev1.Endpoints) field.ErrorList {
	var errs field.ErrorList
	for i := range e.Subsets {
		s, at := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses) == 0 && len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(at, "must specify `addresses` or `notReadyAddresses`"))
		}
		for _, list := range []struct {
			name      string
			addresses []corev1.EndpointAddress
		}{{"addresses", s.Addresses}, {"notReadyAddresses", s.NotReadyAddresses}} {
			for j := range list.addresses {
				a, at := &list.addresses[j], at.Child(list.name).Index(j)
				errs = append(errs, validation.IsValidIPForLegacyField(at.Child("ip"), a.IP, true, nil)...)
				errs = append(errs, rules.NonSpecialIP(a.IP, at.Child("ip"))...)
				if a.Hostname != "" {
					errs = append(errs,
						rules.Messages(at.Child("hostname"), a.Hostname, validation.IsDNS1123Label(a.Hostname))...)
				}
				if a.NodeName != nil {
					errs = append(errs,
						rules.Messages(at.Child("nodeName"), *a.NodeName,
							apivalidation.NameIsDNSSubdomain(*a.NodeName, false))...)
				}
			}
		}
		for j := range s.Ports {
			p, at := &s.Ports[j], at.Child("ports").Index(j)
			if p.Name == "" && len(s.Ports) > 1 {
				errs = append(errs, field.Required(at.Child("name"), ""))
			} else if p.Name != "" {
				errs = append(errs, rules.Messages(at.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))...)
			}
			errs = append(errs, rules.Messages(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))...)
			errs = append(errs, rules.Protocol(p.Protocol, at.Child("protocol"))...)
			if p.AppProtocol != nil {
				errs = append(errs,
					rules.Messages(at.Child("appProtocol"), *p.AppProtocol,
						validation.IsQualifiedName(*p.AppProtocol))...)
			}
		}
	}
	return errs
}

// Unchanged subsets are not validated again: they may follow older rules.
func validateEndpointsUpdate(e, old *corev1.Endpoints) field.ErrorList {
	errs := validateEndpoints(e)
	if len(errs) > 0 && apiequality.Semantic.DeepEqual(e.Subsets, old.Subsets) {
		return nil
	}
	return errs
}

// ValidateEndpointIP validates an address of a slice of one family; list is the path of the
// addresses.
func ValidateEndpointIP(ip string, family discoveryv1.AddressType, list, at *field.Path) field.ErrorList {
	check := validation.IsValidIPForLegacyField(at, ip, true, nil)
	if family == discoveryv1.AddressTypeIPv6 {
		check = validation.IsValidIP(at, ip)
	}
	if len(check) > 0 {
		return check
	}
	var errs field.ErrorList
	if strings.Contains(ip, ":") != (family == discoveryv1.AddressTypeIPv6) {
		errs = append(errs, field.Invalid(list, ip, fmt.Sprintf("must be an %s address", family)))
	}
	return append(errs, rules.NonSpecialIP(ip, at)...)
}
