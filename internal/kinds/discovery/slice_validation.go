package discovery

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/core"
	"carob/internal/kinds/rules"
)

func validateEndpointSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	errs := rules.OneOf(string(s.AddressType), field.NewPath("addressType"), string(discoveryv1.AddressTypeFQDN),
		string(discoveryv1.AddressTypeIPv4), string(discoveryv1.AddressTypeIPv6))
	errs = append(errs, validateSlicePorts(s.Ports, field.NewPath("ports"))...)
	return append(errs, validateSliceEndpoints(s, field.NewPath("endpoints"))...)
}

func validateSliceEndpoints(s *discoveryv1.EndpointSlice, at *field.Path) field.ErrorList {
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
				errs = append(errs, core.ValidateEndpointIP(a, s.AddressType, list, at)...)
			case discoveryv1.AddressTypeFQDN:
				errs = append(errs, validation.IsFullyQualifiedDomainName(at, a)...)
			}
		}
		if e.Hostname != nil {
			errs = append(errs,
				rules.Messages(at.Child("hostname"), *e.Hostname, validation.IsDNS1123Label(*e.Hostname))...)
		}
		if e.NodeName != nil {
			errs = append(errs,
				rules.Messages(at.Child("nodeName"), *e.NodeName,
					apivalidation.NameIsDNSSubdomain(*e.NodeName, false))...)
		}
		errs = append(errs, validateSliceTopology(e, at)...)
	}
	return errs
}

// validateSliceTopology validates the topology of an endpoint, and its hints.
func validateSliceTopology(e *discoveryv1.Endpoint, at *field.Path) field.ErrorList {
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
		{"forZones", len(e.Hints.ForZones), func(i int) string { return e.Hints.ForZones[i].Name },
			validation.IsValidLabelValue},
		{"forNodes", len(e.Hints.ForNodes), func(i int) string { return e.Hints.ForNodes[i].Name },
			func(s string) []string { return apivalidation.NameIsDNSSubdomain(s, false) }},
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
			errs = append(errs, rules.Messages(at, name, hints.check(name))...)
		}
	}
	return errs
}

func validateSlicePorts(list []discoveryv1.EndpointPort, at *field.Path) field.ErrorList {
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
				errs = append(errs, rules.Messages(at.Child("name"), *p.Name, validation.IsDNS1123Label(*p.Name))...)
			}
			if names.Has(*p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), *p.Name))
			}
			names.Insert(*p.Name)
		}
		if p.Protocol == nil {
			errs = append(errs, field.Required(at.Child("protocol"), ""))
		} else {
			errs = append(errs,
				rules.Supported(string(*p.Protocol), at.Child("protocol"), string(corev1.ProtocolSCTP),
					string(corev1.ProtocolTCP), string(corev1.ProtocolUDP))...)
		}
		if p.AppProtocol != nil {
			errs = append(errs,
				rules.Messages(at.Child("appProtocol"), *p.AppProtocol, validation.IsQualifiedName(*p.AppProtocol))...)
		}
	}
	return errs
}

// Unchanged endpoints are not validated again: they may follow older rules.
func validateEndpointSliceUpdate(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	errs := rules.OneOf(string(s.AddressType), field.NewPath("addressType"), string(discoveryv1.AddressTypeFQDN),
		string(discoveryv1.AddressTypeIPv4), string(discoveryv1.AddressTypeIPv6))
	errs = append(errs, validateSlicePorts(s.Ports, field.NewPath("ports"))...)
	if more := validateSliceEndpoints(s, field.NewPath("endpoints")); len(more) > 0 &&
		!apiequality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
		errs = append(errs, more...)
	}
	return append(errs, apivalidation.ValidateImmutableField(s.AddressType, old.AddressType,
		field.NewPath("addressType"))...)
}

// endpointSliceWarnings are about the address type of new slices and the form of addresses.
// Controllers get none, because they write the canonical form.
func endpointSliceWarnings(_ context.Context, obj, old runtime.Object) []string {
	s, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil
	}
	var out []string
	if old == nil && s.AddressType == discoveryv1.AddressTypeFQDN {
		out = append(out, "spec.addressType: FQDN endpoints are deprecated")
	}
	switch s.Labels[discoveryv1.LabelManagedBy] {
	case "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io":
		return out
	}
	for i := range s.Endpoints {
		for j, a := range s.Endpoints[i].Addresses {
			out = append(out,
				validation.GetWarningsForIP(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), a)...)
		}
	}
	return out
}
