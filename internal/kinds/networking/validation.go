package networking

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"carob/internal/kinds/rules"
)

// ingressClassAnnotation named the class before the field existed.
const ingressClassAnnotation = "kubernetes.io/ingress.class"

// ingressTolerance are the errors that an update may keep because the stored ingress has them.
type ingressTolerance struct{ secretName, wildcardRule bool }

func validateIngress(i *networkingv1.Ingress) field.ErrorList {
	errs := validateIngressSpec(&i.Spec, ingressTolerance{}, field.NewPath("spec"))
	if class, ok := i.Annotations[ingressClassAnnotation]; ok && i.Spec.IngressClassName != nil &&
		class != *i.Spec.IngressClassName {
		errs = append(errs, field.Invalid(field.NewPath("annotations").Child(ingressClassAnnotation), class,
			"must match `ingressClassName` when both are specified"))
	}
	return errs
}

func validateIngressUpdate(i, old *networkingv1.Ingress) field.ErrorList {
	var t ingressTolerance
	for _, tls := range old.Spec.TLS {
		t.secretName = t.secretName || tls.SecretName != "" &&
			len(apivalidation.NameIsDNSSubdomain(tls.SecretName, false)) > 0
	}
	for _, r := range old.Spec.Rules {
		t.wildcardRule = t.wildcardRule || strings.Contains(r.Host, "*") && len(validateIngressHTTP(r.HTTP, nil)) > 0
	}
	return validateIngressSpec(&i.Spec, t, field.NewPath("spec"))
}

func validateIngressSpec(s *networkingv1.IngressSpec, t ingressTolerance, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Rules) == 0 && s.DefaultBackend == nil {
		errs = append(errs, field.Invalid(at, s.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if s.DefaultBackend != nil {
		errs = append(errs, validateIngressBackend(s.DefaultBackend, at.Child("defaultBackend"))...)
	}
	for i := range s.Rules {
		r, at := &s.Rules[i], at.Child("rules").Index(i)
		wildcard := strings.Contains(r.Host, "*")
		if r.Host != "" {
			if rules.IsIP(r.Host) {
				errs = append(errs, field.Invalid(at.Child("host"), r.Host, "must be a DNS name, not an IP address"))
			}
			errs = append(errs, rules.Messages(at.Child("host"), r.Host, hostName(r.Host))...)
		}
		if !wildcard || !t.wildcardRule {
			errs = append(errs, validateIngressHTTP(r.HTTP, at)...)
		}
	}
	for i, tls := range s.TLS {
		at := at.Child("tls").Index(i)
		for j, host := range tls.Hosts {
			errs = append(errs, rules.Messages(at.Child("hosts").Index(j), host, hostName(host))...)
		}
		if tls.SecretName != "" && !t.secretName {
			errs = append(errs,
				rules.Messages(at.Child("secretName"), tls.SecretName,
					apivalidation.NameIsDNSSubdomain(tls.SecretName, false))...)
		}
	}
	if s.IngressClassName != nil {
		errs = append(errs, rules.Messages(at.Child("ingressClassName"), *s.IngressClassName,
			apivalidation.NameIsDNSSubdomain(*s.IngressClassName, false))...)
	}
	return errs
}

// hostName returns the errors of a host, which may begin with "*.".
func hostName(host string) []string {
	if strings.Contains(host, "*") {
		return validation.IsWildcardDNS1123Subdomain(host)
	}
	return validation.IsDNS1123Subdomain(host)
}

func validateIngressHTTP(h *networkingv1.HTTPIngressRuleValue, at *field.Path) field.ErrorList {
	if h == nil {
		return nil
	}
	at = at.Child("http", "paths")
	if len(h.Paths) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	for i := range h.Paths {
		errs = append(errs, validateIngressPath(&h.Paths[i], at.Index(i))...)
	}
	return errs
}

func validateIngressPath(p *networkingv1.HTTPIngressPath, at *field.Path) field.ErrorList {
	if p.PathType == nil {
		return field.ErrorList{field.Required(at.Child("pathType"), "pathType must be specified")}
	}
	var errs field.ErrorList
	absolute := func() {
		if !strings.HasPrefix(p.Path, "/") {
			errs = append(errs, field.Invalid(at.Child("path"), p.Path, "must be an absolute path"))
		}
	}
	switch *p.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		absolute()
		for _, part := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(p.Path, part) {
				errs = append(errs, field.Invalid(at.Child("path"), p.Path, fmt.Sprintf("must not contain '%s'", part)))
			}
		}
		for _, end := range []string{"/..", "/."} {
			if strings.HasSuffix(p.Path, end) {
				errs = append(errs, field.Invalid(at.Child("path"), p.Path, fmt.Sprintf("cannot end with '%s'", end)))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if p.Path != "" {
			absolute()
		}
	default:
		errs = append(errs, field.NotSupported(at.Child("pathType"), *p.PathType,
			[]networkingv1.PathType{networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific,
				networkingv1.PathTypePrefix}))
	}
	return append(errs, validateIngressBackend(&p.Backend, at.Child("backend"))...)
}

func validateIngressBackend(b *networkingv1.IngressBackend, at *field.Path) field.ErrorList {
	switch {
	case b.Resource != nil && b.Service != nil:
		return field.ErrorList{field.Invalid(at, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		return rules.ObjectReference(b.Resource.APIGroup, b.Resource.Kind, b.Resource.Name, at.Child("resource"))
	case b.Service == nil:
		return field.ErrorList{field.Invalid(at, "", "resource or service backend is required")}
	}
	s, service := b.Service, at.Child("service")
	errs := rules.Required(service.Child("name"), s.Name)
	if s.Name != "" {
		errs = rules.Messages(service.Child("name"), s.Name, apivalidation.NameIsDNSLabel(s.Name, false))
	}
	switch name, number := s.Port.Name, s.Port.Number; {
	case name != "" && number != 0:
		errs = append(errs, field.Invalid(at, "", "cannot set both port name & port number"))
	case name != "":
		errs = append(errs, rules.Messages(service.Child("port", "name"), name, validation.IsValidPortName(name))...)
	case number != 0:
		errs = append(errs, rules.Messages(service.Child("port", "number"), number,
			validation.IsValidPortNum(int(number)))...)
	default:
		errs = append(errs, field.Required(at, "port name or number is required"))
	}
	return errs
}

func validateIngressStatusUpdate(i, old *networkingv1.Ingress) field.ErrorList {
	var errs field.ErrorList
	known := sets.New[string]()
	for _, in := range old.Status.LoadBalancer.Ingress {
		known.Insert(in.IP)
	}
	for j, in := range i.Status.LoadBalancer.Ingress {
		at := field.NewPath("status", "loadBalancer", "ingress").Index(j)
		if in.IP != "" {
			errs = append(errs, rules.LegacyIP(at.Child("ip"), in.IP, known)...)
		}
		if in.Hostname != "" {
			errs = append(errs,
				rules.Messages(at.Child("hostname"), in.Hostname, validation.IsDNS1123Subdomain(in.Hostname))...)
			if rules.IsIP(in.Hostname) {
				errs = append(errs,
					field.Invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
			}
		}
	}
	return errs
}

func ingressWarnings(_ context.Context, obj, old runtime.Object) []string {
	i := obj.(*networkingv1.Ingress)
	if _, ok := i.Annotations[ingressClassAnnotation]; ok && old == nil && i.Spec.IngressClassName == nil {
		return []string{fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead",
			ingressClassAnnotation)}
	}
	return nil
}

func validateIngressClass(c *networkingv1.IngressClass) field.ErrorList {
	const longest = 250
	at := field.NewPath("spec")
	var errs field.ErrorList
	if len(c.Spec.Controller) > longest {
		errs = append(errs, field.TooLong(at.Child("controller"), "", longest))
	}
	errs = append(errs, validation.IsDomainPrefixedPath(at.Child("controller"), c.Spec.Controller)...)
	p, at := c.Spec.Parameters, at.Child("parameters")
	if p == nil {
		return errs
	}
	errs = append(errs, rules.ObjectReference(p.APIGroup, p.Kind, p.Name, at)...)
	if p.Scope == nil {
		return append(errs, field.Required(at.Child("scope"), ""))
	}
	errs = append(errs, rules.Supported(*p.Scope, at.Child("scope"),
		networkingv1.IngressClassParametersReferenceScopeCluster,
		networkingv1.IngressClassParametersReferenceScopeNamespace)...)
	switch {
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeNamespace && p.Namespace == nil:
		errs = append(errs, field.Required(at.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeNamespace:
		errs = append(errs, rules.Messages(at.Child("namespace"), *p.Namespace,
			apivalidation.ValidateNamespaceName(*p.Namespace, false))...)
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeCluster && p.Namespace != nil:
		errs = append(errs, field.Forbidden(at.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
	}
	return errs
}

func validateIngressClassUpdate(c, old *networkingv1.IngressClass) field.ErrorList {
	return append(apivalidation.ValidateImmutableField(c.Spec.Controller, old.Spec.Controller,
		field.NewPath("spec", "controller")), validateIngressClass(c)...)
}

func validateNetworkPolicy(p *networkingv1.NetworkPolicy) field.ErrorList {
	return validateNetworkPolicySpec(&p.Spec, false, nil)
}

func validateNetworkPolicyUpdate(p, old *networkingv1.NetworkPolicy) field.ErrorList {
	known := sets.New[string]()
	eachBlock(&old.Spec, func(b *networkingv1.IPBlock,
		_ *field.Path) {
		known.Insert(b.CIDR).Insert(b.Except...)
	})
	badLabels := len(metav1validation.ValidateLabelSelector(&old.Spec.PodSelector,
		metav1validation.LabelSelectorValidationOptions{}, nil)) > 0
	return validateNetworkPolicySpec(&p.Spec, badLabels, known)
}

// validateNetworkPolicySpec validates a policy; known are addresses of the stored policy, which may
// stay.
func validateNetworkPolicySpec(s *networkingv1.NetworkPolicySpec, badLabels bool,
	known sets.Set[string]) field.ErrorList {
	at := field.NewPath("spec")
	opts := metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: badLabels}
	errs := metav1validation.ValidateLabelSelector(&s.PodSelector, opts, at.Child("podSelector"))
	side := func(ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer, at *field.Path,
		peersField string) {
		for i := range ports {
			errs = append(errs, validatePolicyPort(&ports[i], at.Child("ports").Index(i))...)
		}
		for i := range peers {
			errs = append(errs, validatePolicyPeer(&peers[i], opts, known, at.Child(peersField).Index(i))...)
		}
	}
	for i := range s.Ingress {
		side(s.Ingress[i].Ports, s.Ingress[i].From, at.Child("ingress").Index(i), "from")
	}
	for i := range s.Egress {
		side(s.Egress[i].Ports, s.Egress[i].To, at.Child("egress").Index(i), "to")
	}
	if len(s.PolicyTypes) > 2 {
		return append(errs, field.Invalid(at.Child("policyTypes"), s.PolicyTypes,
			"may not specify more than two policyTypes"))
	}
	for i, t := range s.PolicyTypes {
		if t != networkingv1.PolicyTypeIngress && t != networkingv1.PolicyTypeEgress {
			errs = append(errs,
				field.NotSupported(at.Child("policyTypes").Index(i), t,
					[]networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}))
		}
	}
	return errs
}

func validatePolicyPort(p *networkingv1.NetworkPolicyPort, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP && *p.Protocol != corev1.ProtocolUDP &&
		*p.Protocol != corev1.ProtocolSCTP {
		errs = append(errs, field.NotSupported(at.Child("protocol"), *p.Protocol,
			[]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}))
	}
	end := at.Child("endPort")
	switch {
	case p.Port == nil:
		if p.EndPort != nil {
			errs = append(errs, field.Invalid(end, *p.EndPort, "may not be specified when `port` is not specified"))
		}
		return errs
	case p.EndPort == nil:
	case p.Port.Type == intstr.String:
		errs = append(errs, field.Invalid(end, *p.EndPort, "may not be specified when `port` is non-numeric"))
	default:
		if *p.EndPort < p.Port.IntVal {
			errs = append(errs, field.Invalid(end, *p.EndPort, "must be greater than or equal to `port`"))
		}
		errs = append(errs, rules.Messages(end, *p.EndPort, validation.IsValidPortNum(int(*p.EndPort)))...)
	}
	return append(errs, rules.PortNumberOrName(*p.Port, at.Child("port"))...)
}

func validatePolicyPeer(p *networkingv1.NetworkPolicyPeer, opts metav1validation.LabelSelectorValidationOptions,
	known sets.Set[string], at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.PodSelector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(p.PodSelector, opts, at.Child("podSelector"))...)
	}
	if p.NamespaceSelector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(p.NamespaceSelector, opts,
			at.Child("namespaceSelector"))...)
	}
	selectors := p.PodSelector != nil || p.NamespaceSelector != nil
	switch {
	case p.IPBlock != nil:
		errs = append(errs, validateIPBlock(p.IPBlock, known, at.Child("ipBlock"))...)
		if selectors {
			errs = append(errs, field.Forbidden(at, "may not specify both ipBlock and another peer"))
		}
	case !selectors:
		errs = append(errs, field.Required(at, "must specify a peer"))
	}
	return errs
}

func validateIPBlock(b *networkingv1.IPBlock, known sets.Set[string], at *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(at.Child("cidr"), "")}
	}
	errs := rules.LegacyCIDR(at.Child("cidr"), b.CIDR, known)
	_, outer, err := netutils.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return errs
	}
	size, _ := outer.Mask.Size()
	for i, except := range b.Except {
		at := at.Child("except").Index(i)
		errs = append(errs, rules.LegacyCIDR(at, except, known)...)
		_, inner, err := netutils.ParseCIDRSloppy(except)
		if err != nil {
			continue
		}
		if n, _ := inner.Mask.Size(); !outer.Contains(inner.IP) || size >= n {
			errs = append(errs, field.Invalid(at, except, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}

// eachBlock calls fn for every CIDR block in a policy.
func eachBlock(s *networkingv1.NetworkPolicySpec, fn func(*networkingv1.IPBlock, *field.Path)) {
	peers := func(list []networkingv1.NetworkPolicyPeer, at *field.Path) {
		for i := range list {
			if b := list[i].IPBlock; b != nil {
				fn(b, at.Index(i).Child("ipBlock"))
			}
		}
	}
	for i := range s.Ingress {
		peers(s.Ingress[i].From, field.NewPath("spec", "ingress").Index(i).Child("from"))
	}
	for i := range s.Egress {
		peers(s.Egress[i].To, field.NewPath("spec", "egress").Index(i).Child("to"))
	}
}

func networkPolicyWarnings(_ context.Context, obj, _ runtime.Object) []string {
	var out []string
	eachBlock(&obj.(*networkingv1.NetworkPolicy).Spec, func(b *networkingv1.IPBlock, at *field.Path) {
		out = append(out, validation.GetWarningsForCIDR(at.Child("cidr"), b.CIDR)...)
		for i, except := range b.Except {
			out = append(out, validation.GetWarningsForCIDR(at.Child("except").Index(i), except)...)
		}
	})
	return out
}

func ipAddressName(name string, _ bool) []string {
	var out []string
	for _, e := range validation.IsValidIP(&field.Path{}, name) {
		out = append(out, e.Detail)
	}
	return out
}

func validateIPAddress(a *networkingv1.IPAddress) field.ErrorList {
	at, r := field.NewPath("spec", "parentRef"), a.Spec.ParentRef
	if r == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	if r.Group != "" {
		errs = append(errs, rules.Messages(at.Child("group"), r.Group, validation.IsDNS1123Subdomain(r.Group))...)
	}
	for _, f := range []struct {
		name, value string
		required    bool
	}{{"resource", r.Resource, true}, {"name", r.Name, true}, {"namespace", r.Namespace, false}} {
		switch {
		case f.value != "":
			errs = append(errs, rules.Messages(at.Child(f.name), f.value, content.IsPathSegmentName(f.value))...)
		case f.required:
			errs = append(errs, field.Required(at.Child(f.name), ""))
		}
	}
	return errs
}

func validateIPAddressUpdate(a, old *networkingv1.IPAddress) field.ErrorList {
	return append(validateIPAddress(a),
		apivalidation.ValidateImmutableField(a.Spec.ParentRef, old.Spec.ParentRef,
			field.NewPath("spec", "parentRef"))...)
}

func validateServiceCIDR(c *networkingv1.ServiceCIDR) field.ErrorList {
	at := field.NewPath("spec", "cidrs")
	switch n := len(c.Spec.CIDRs); {
	case n == 0:
		return field.ErrorList{field.Required(at, "at least one CIDR required")}
	case n > 2:
		return field.ErrorList{field.Invalid(at, c.Spec, "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	families := map[bool]int{}
	for i, cidr := range c.Spec.CIDRs {
		errs = append(errs, validation.IsValidCIDR(at.Index(i), cidr)...)
		if p, err := netip.ParsePrefix(cidr); err == nil {
			families[p.Addr().Is4()]++
		}
	}
	if families[true] > 1 || families[false] > 1 {
		errs = append(errs, field.Invalid(at, c.Spec.CIDRs,
			"may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
	}
	return errs
}

// A CIDR never changes; a second one, of the other family, may be added.
func validateServiceCIDRUpdate(c, old *networkingv1.ServiceCIDR) field.ErrorList {
	at := field.NewPath("spec", "cidrs")
	now, was := c.Spec.CIDRs, old.Spec.CIDRs
	if len(now) != len(was) && !(len(was) == 1 && len(now) == 2) {
		return field.ErrorList{field.Invalid(at, now, apivalidation.FieldImmutableErrorMsg)}
	}
	var errs field.ErrorList
	for i := range was {
		if now[i] != was[i] {
			errs = append(errs, field.Invalid(at.Index(i), now[i], apivalidation.FieldImmutableErrorMsg))
		}
	}
	if len(now) > len(was) {
		errs = append(errs, validateServiceCIDR(c)...)
	}
	return errs
}
