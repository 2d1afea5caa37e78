package validation

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func endpoints(e *corev1.Endpoints) field.ErrorList {
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
				errs = append(errs, nonSpecialIP(a.IP, at.Child("ip"))...)
				if a.Hostname != "" {
					errs = append(errs, messages(at.Child("hostname"), a.Hostname, validation.IsDNS1123Label(a.Hostname))...)
				}
				if a.NodeName != nil {
					errs = append(errs, messages(at.Child("nodeName"), *a.NodeName, apivalidation.NameIsDNSSubdomain(*a.NodeName, false))...)
				}
			}
		}
		for j := range s.Ports {
			p, at := &s.Ports[j], at.Child("ports").Index(j)
			if p.Name == "" && len(s.Ports) > 1 {
				errs = append(errs, field.Required(at.Child("name"), ""))
			} else if p.Name != "" {
				errs = append(errs, messages(at.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))...)
			}
			errs = append(errs, messages(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))...)
			errs = append(errs, protocol(p.Protocol, at.Child("protocol"))...)
			if p.AppProtocol != nil {
				errs = append(errs, messages(at.Child("appProtocol"), *p.AppProtocol, validation.IsQualifiedName(*p.AppProtocol))...)
			}
		}
	}
	return errs
}

// What stays as it is is not checked again: there are older rules.
func endpointsUpdate(e, old *corev1.Endpoints) field.ErrorList {
	errs := endpoints(e)
	if len(errs) > 0 && apiequality.Semantic.DeepEqual(e.Subsets, old.Subsets) {
		return nil
	}
	return errs
}

// endpointIP checks an address of a slice of one family; list is where the addresses are.
func endpointIP(ip string, family discoveryv1.AddressType, list, at *field.Path) field.ErrorList {
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
	return append(errs, nonSpecialIP(ip, at)...)
}

func endpointSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	errs := oneOf(string(s.AddressType), field.NewPath("addressType"), string(discoveryv1.AddressTypeFQDN), string(discoveryv1.AddressTypeIPv4), string(discoveryv1.AddressTypeIPv6))
	errs = append(errs, slicePorts(s.Ports, field.NewPath("ports"))...)
	return append(errs, sliceEndpoints(s, field.NewPath("endpoints"))...)
}

func sliceEndpoints(s *discoveryv1.EndpointSlice, at *field.Path) field.ErrorList {
	const maxEndpoints, maxAddresses = 1000, 100
	if n := len(s.Endpoints); n > maxEndpoints {
		return field.ErrorList{field.TooMany(at, n, maxEndpoints)}
	}
	var errs field.ErrorList
	for i := range s.Endpoints {
		e, at := &s.Endpoints[i], at.Index(i)
		switch n := len(e.Addresses); {
		case n == 0:
			errs = append(errs, field.Required(at.Child("addresses"), "must contain at least 1 address"))
		case n > maxAddresses:
			errs = append(errs, field.TooMany(at.Child("addresses"), n, maxAddresses))
		}
		for j, a := range e.Addresses {
			list := at.Child("addresses")
			at := list.Index(j)
			switch s.AddressType {
			case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
				errs = append(errs, endpointIP(a, s.AddressType, list, at)...)
			case discoveryv1.AddressTypeFQDN:
				errs = append(errs, validation.IsFullyQualifiedDomainName(at, a)...)
			}
		}
		if e.Hostname != nil {
			errs = append(errs, messages(at.Child("hostname"), *e.Hostname, validation.IsDNS1123Label(*e.Hostname))...)
		}
		if e.NodeName != nil {
			errs = append(errs, messages(at.Child("nodeName"), *e.NodeName, apivalidation.NameIsDNSSubdomain(*e.NodeName, false))...)
		}
		errs = append(errs, sliceTopology(e, at)...)
	}
	return errs
}

// sliceTopology checks where an endpoint is, and for whom it should be taken.
func sliceTopology(e *discoveryv1.Endpoint, at *field.Path) field.ErrorList {
	const maxLabels, maxHints = 16, 8
	labels := at.Child("deprecatedTopology")
	var errs field.ErrorList
	if n := len(e.DeprecatedTopology); n > maxLabels {
		errs = append(errs, field.TooMany(labels, n, maxLabels))
	}
	errs = append(errs, metav1validation.ValidateLabels(e.DeprecatedTopology, labels)...)
	if e.Hints == nil {
		return errs
	}
	for _, hints := range []struct {
		field string
		n     int
		name  func(int) string
		check func(string) []string
	}{
		{"forZones", len(e.Hints.ForZones), func(i int) string { return e.Hints.ForZones[i].Name }, validation.IsValidLabelValue},
		{"forNodes", len(e.Hints.ForNodes), func(i int) string { return e.Hints.ForNodes[i].Name }, func(s string) []string { return apivalidation.NameIsDNSSubdomain(s, false) }},
	} {
		at := at.Child("hints", hints.field)
		if hints.n > maxHints {
			return append(errs, field.TooMany(at, hints.n, maxHints))
		}
		seen := sets.New[string]()
		for i := range hints.n {
			at, name := at.Index(i).Child("name"), hints.name(i)
			if seen.Has(name) {
				errs = append(errs, field.Duplicate(at, name))
			}
			seen.Insert(name)
			errs = append(errs, messages(at, name, hints.check(name))...)
		}
	}
	return errs
}

func slicePorts(list []discoveryv1.EndpointPort, at *field.Path) field.ErrorList {
	const maxPorts = 20000
	if n := len(list); n > maxPorts {
		return field.ErrorList{field.TooMany(at, n, maxPorts)}
	}
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range list {
		p, at := &list[i], at.Index(i)
		if p.Name != nil {
			if *p.Name != "" {
				errs = append(errs, messages(at.Child("name"), *p.Name, validation.IsDNS1123Label(*p.Name))...)
			}
			if names.Has(*p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), *p.Name))
			}
			names.Insert(*p.Name)
		}
		if p.Protocol == nil {
			errs = append(errs, field.Required(at.Child("protocol"), ""))
		} else {
			errs = append(errs, supported(string(*p.Protocol), at.Child("protocol"), string(corev1.ProtocolSCTP), string(corev1.ProtocolTCP), string(corev1.ProtocolUDP))...)
		}
		if p.AppProtocol != nil {
			errs = append(errs, messages(at.Child("appProtocol"), *p.AppProtocol, validation.IsQualifiedName(*p.AppProtocol))...)
		}
	}
	return errs
}

// Endpoints that stay as they are are not checked again: there are older rules.
func endpointSliceUpdate(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	errs := oneOf(string(s.AddressType), field.NewPath("addressType"), string(discoveryv1.AddressTypeFQDN), string(discoveryv1.AddressTypeIPv4), string(discoveryv1.AddressTypeIPv6))
	errs = append(errs, slicePorts(s.Ports, field.NewPath("ports"))...)
	if more := sliceEndpoints(s, field.NewPath("endpoints")); len(more) > 0 && !apiequality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
		errs = append(errs, more...)
	}
	return append(errs, apivalidation.ValidateImmutableField(s.AddressType, old.AddressType, field.NewPath("addressType"))...)
}
