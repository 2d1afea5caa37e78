package services

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/rules"
)

func validateService(s *corev1.Service) field.ErrorList { return checkService(s, nil) }

// checkService validates s; addresses in a form that is no longer valid may stay if old has them.
func checkService(s, old *corev1.Service) field.ErrorList {
	known := sets.New[string]()
	if old != nil {
		known.Insert(old.Spec.ClusterIPs...).Insert(old.Spec.ExternalIPs...)
		for _, r := range old.Spec.LoadBalancerSourceRanges {
			known.Insert(strings.TrimSpace(r))
		}
	}
	sp, at := &s.Spec, field.NewPath("spec")
	headless := sp.ClusterIP == corev1.ClusterIPNone
	var errs field.ErrorList
	if len(sp.Ports) == 0 && !headless && sp.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(at.Child("ports"), ""))
	}
	errs = append(errs, rules.OneOf(string(sp.Type), at.Child("type"), string(corev1.ServiceTypeClusterIP),
		string(corev1.ServiceTypeExternalName), string(corev1.ServiceTypeLoadBalancer),
		string(corev1.ServiceTypeNodePort))...)
	switch sp.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if headless || len(sp.ClusterIPs) > 0 && sp.ClusterIPs[0] == corev1.ClusterIPNone {
			errs = append(errs,
				field.Invalid(at.Child("clusterIPs").Index(0), corev1.ClusterIPNone,
					fmt.Sprintf("may not be set to 'None' for %s services", sp.Type)))
		}
	case corev1.ServiceTypeExternalName:
		if sp.ClusterIP != "" || len(sp.ClusterIPs) > 0 {
			errs = append(errs, field.Forbidden(at.Child("clusterIPs"), "may not be set for ExternalName services"))
		}
		if name := strings.TrimSuffix(sp.ExternalName, "."); name != "" {
			errs = append(errs,
				rules.Messages(at.Child("externalName"), sp.ExternalName, validation.IsDNS1123Subdomain(name))...)
		} else {
			errs = append(errs, field.Required(at.Child("externalName"), ""))
		}
	}
	errs = append(errs, validateServicePorts(sp, at.Child("ports"))...)
	errs = append(errs, metav1validation.ValidateLabels(sp.Selector, at.Child("selector"))...)
	errs = append(errs, rules.OneOf(string(sp.SessionAffinity), at.Child("sessionAffinity"),
		string(corev1.ServiceAffinityClientIP), string(corev1.ServiceAffinityNone))...)
	if c := sp.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		const longest = 24 * 60 * 60
		if t := *c.ClientIP.TimeoutSeconds; t <= 0 || t > longest {
			errs = append(errs,
				field.Invalid(at.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), t,
					fmt.Sprintf("must be greater than 0 and less than %d", longest)))
		}
	}
	if sp.Type == corev1.ServiceTypeExternalName {
		if len(sp.IPFamilies) > 0 {
			errs = append(errs, field.Forbidden(at.Child("ipFamilies"), "may not be set for ExternalName services"))
		}
		if sp.IPFamilyPolicy != nil {
			errs = append(errs, field.Forbidden(at.Child("ipFamilyPolicy"), "may not be set for ExternalName services"))
		}
	} else {
		errs = append(errs, validateClusterIPs(sp, known, at)...)
	}
	for i, ip := range sp.ExternalIPs {
		at := at.Child("externalIPs").Index(i)
		more := rules.LegacyIP(at, ip, known)
		if errs = append(errs, more...); len(more) == 0 {
			errs = append(errs, rules.NonSpecialIP(ip, at)...)
		}
	}
	return append(errs, validateTrafficPolicies(sp, known, at)...)
}

// ValidateServiceClusterIPs validates the addresses and families of a service before any are
// allocated; old is nil for a new one.
func ValidateServiceClusterIPs(s, old *corev1.Service) field.ErrorList {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	known := sets.New[string]()
	if old != nil {
		known.Insert(old.Spec.ClusterIPs...)
	}
	return validateClusterIPs(&s.Spec, known, field.NewPath("spec"))
}

// validateClusterIPs validates the addresses of a service and their families.
func validateClusterIPs(sp *corev1.ServiceSpec, known sets.Set[string], at *field.Path) field.ErrorList {
	ips, families := at.Child("clusterIPs"), at.Child("ipFamilies")
	var errs field.ErrorList
	switch {
	case sp.ClusterIP != "" && len(sp.ClusterIPs) == 0:
		errs = append(errs, field.Required(ips, ""))
	case sp.ClusterIP != "" && sp.ClusterIPs[0] != sp.ClusterIP:
		errs = append(errs, field.Invalid(ips, sp.ClusterIPs, "first value must match `clusterIP`"))
	case sp.ClusterIP == "" && len(sp.ClusterIPs) > 0:
		errs = append(errs, field.Invalid(ips, sp.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	}
	seen := sets.New[corev1.IPFamily]()
	for i, f := range sp.IPFamilies {
		errs = append(errs, rules.Supported(string(f), families.Index(i), string(corev1.IPv4Protocol),
			string(corev1.IPv6Protocol))...)
		if seen.Has(f) {
			errs = append(errs, field.Duplicate(families.Index(i), f))
		}
		seen.Insert(f)
	}
	if p := sp.IPFamilyPolicy; p != nil {
		errs = append(errs, rules.Supported(string(*p), at.Child("ipFamilyPolicy"),
			string(corev1.IPFamilyPolicyPreferDualStack), string(corev1.IPFamilyPolicyRequireDualStack),
			string(corev1.IPFamilyPolicySingleStack))...)
	}
	var wrong field.ErrorList
	for i, ip := range sp.ClusterIPs {
		if i > 0 || ip != corev1.ClusterIPNone {
			wrong = append(wrong, rules.LegacyIP(ips.Index(i), ip, known)...)
		} else if len(sp.ClusterIPs) > 1 {
			wrong = append(wrong, field.Invalid(ips, sp.ClusterIPs, "'None' must be the first and only value"))
		}
	}
	if len(sp.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(ips, sp.ClusterIPs, "may only hold up to 2 values"))
	}
	if errs = append(errs, wrong...); len(wrong) > 0 || sp.ClusterIP == corev1.ClusterIPNone {
		return errs
	}
	if len(sp.ClusterIPs) > 1 && strings.Contains(sp.ClusterIPs[0], ":") == strings.Contains(sp.ClusterIPs[1], ":") {
		errs = append(errs, field.Invalid(ips, sp.ClusterIPs, "may specify no more than one IP for each IP family"))
	}
	for i, ip := range sp.ClusterIPs {
		if i == len(sp.IPFamilies) {
			break
		}
		six := strings.Contains(ip, ":")
		if f := sp.IPFamilies[i]; f == corev1.IPv4Protocol && six || f == corev1.IPv6Protocol && !six {
			errs = append(errs,
				field.Invalid(ips.Index(i), ip,
					fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%d]`", f, i)))
		}
	}
	return errs
}

func validateServicePorts(sp *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names, ports, nodePorts := sets.New[string](), sets.New[string](), sets.New[string]()
	for i := range sp.Ports {
		p, at := &sp.Ports[i], at.Index(i)
		switch {
		case p.Name == "" && len(sp.Ports) > 1:
			errs = append(errs, field.Required(at.Child("name"), ""))
		case p.Name != "":
			errs = append(errs, rules.Messages(at.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))...)
			if names.Has(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
			names.Insert(p.Name)
		}
		errs = append(errs, rules.Messages(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))...)
		errs = append(errs, rules.Protocol(p.Protocol, at.Child("protocol"))...)
		errs = append(errs, rules.PortNumberOrName(p.TargetPort, at.Child("targetPort"))...)
		if p.AppProtocol != nil {
			errs = append(errs,
				rules.Messages(at.Child("appProtocol"), *p.AppProtocol, validation.IsQualifiedName(*p.AppProtocol))...)
		}
		key := fmt.Sprintf("%s/%d", p.Protocol, p.Port)
		if ports.Has(key) {
			errs = append(errs, field.Duplicate(at, corev1.ServicePort{Protocol: p.Protocol, Port: p.Port}))
		}
		ports.Insert(key)
		if p.NodePort == 0 {
			continue
		}
		if sp.Type == corev1.ServiceTypeClusterIP {
			errs = append(errs,
				field.Forbidden(at.Child("nodePort"), fmt.Sprintf("may not be used when `type` is '%s'", sp.Type)))
		}
		key = fmt.Sprintf("%s/%d", p.Protocol, p.NodePort)
		if nodePorts.Has(key) {
			errs = append(errs, field.Duplicate(at.Child("nodePort"), p.NodePort))
		}
		nodePorts.Insert(key)
	}
	return errs
}

func validateTrafficPolicies(sp *corev1.ServiceSpec, known sets.Set[string], at *field.Path) field.ErrorList {
	var errs field.ErrorList
	external := sp.Type == corev1.ServiceTypeLoadBalancer || sp.Type == corev1.ServiceTypeNodePort ||
		sp.Type == corev1.ServiceTypeClusterIP && len(sp.ExternalIPs) > 0
	switch {
	case sp.ExternalTrafficPolicy != "" && !external:
		errs = append(errs, field.Invalid(at.Child("externalTrafficPolicy"), sp.ExternalTrafficPolicy,
			"may only be set for externally-accessible services"))
	case external:
		errs = append(errs, rules.OneOf(string(sp.ExternalTrafficPolicy), at.Child("externalTrafficPolicy"),
			string(corev1.ServiceExternalTrafficPolicyCluster), string(corev1.ServiceExternalTrafficPolicyLocal))...)
	}
	if sp.InternalTrafficPolicy == nil && sp.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(at.Child("internalTrafficPolicy"), ""))
	}
	if d := sp.TrafficDistribution; d != nil {
		errs = append(errs, rules.Supported(*d, at.Child("trafficDistribution"),
			corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone,
			corev1.ServiceTrafficDistributionPreferSameNode)...)
	}
	if p := sp.InternalTrafficPolicy; p != nil {
		errs = append(errs, rules.Supported(string(*p), at.Child("internalTrafficPolicy"),
			string(corev1.ServiceInternalTrafficPolicyCluster), string(corev1.ServiceInternalTrafficPolicyLocal))...)
	}
	balanced := sp.Type == corev1.ServiceTypeLoadBalancer
	if sp.HealthCheckNodePort != 0 &&
		!(balanced && sp.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal) {
		errs = append(errs, field.Invalid(at.Child("healthCheckNodePort"), sp.HealthCheckNodePort,
			"may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	}
	if balanced && sp.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		if sp.HealthCheckNodePort == 0 {
			errs = append(errs, field.Required(at.Child("healthCheckNodePort"), ""))
		} else {
			errs = append(errs,
				rules.Messages(at.Child("healthCheckNodePort"), sp.HealthCheckNodePort,
					validation.IsValidPortNum(int(sp.HealthCheckNodePort)))...)
		}
	}
	if balanced {
		if c := sp.LoadBalancerClass; c != nil {
			errs = append(errs, rules.Messages(at.Child("loadBalancerClass"), *c, validation.IsQualifiedName(*c))...)
		}
		for i, r := range sp.LoadBalancerSourceRanges {
			errs = append(errs,
				rules.LegacyCIDR(at.Child("LoadBalancerSourceRanges").Index(i), strings.TrimSpace(r), known)...)
		}
		return errs
	}
	const only = "may only be used when `type` is 'LoadBalancer'"
	if len(sp.LoadBalancerSourceRanges) > 0 {
		errs = append(errs, field.Forbidden(at.Child("LoadBalancerSourceRanges"), only))
	}
	if sp.LoadBalancerClass != nil {
		errs = append(errs, field.Forbidden(at.Child("loadBalancerClass"), only))
	}
	if sp.AllocateLoadBalancerNodePorts != nil {
		errs = append(errs, field.Forbidden(at.Child("allocateLoadBalancerNodePorts"), only))
	}
	return errs
}

func validateServiceUpdate(s, old *corev1.Service) field.ErrorList {
	at := field.NewPath("spec")
	errs := append(validateClusterIPsUpdate(s, old, at),
		validateFamiliesUpdate(&s.Spec, &old.Spec, at.Child("ipFamilies"))...)
	errs = append(errs, checkService(s, old)...)
	balanced := func(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeLoadBalancer }
	if balanced(s) && balanced(old) &&
		ptr.Deref(s.Spec.LoadBalancerClass, "") != ptr.Deref(old.Spec.LoadBalancerClass, "") {
		errs = append(errs, field.Invalid(at.Child("loadBalancerClass"), s.Spec.LoadBalancerClass,
			"may not change once set"))
	}
	local := func(s *corev1.Service) bool {
		return balanced(s) && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	}
	if local(s) && local(old) && s.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		errs = append(errs, field.Forbidden(at.Child("healthCheckNodePort"), "field is immutable"))
	}
	return errs
}

// validateFamiliesUpdate: the first family stays, a second one may be added and removed.
func validateFamiliesUpdate(s, old *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	const fixed = "may not change once set"
	if s.Type == corev1.ServiceTypeExternalName || old.Type == corev1.ServiceTypeExternalName ||
		s.ClusterIP == corev1.ClusterIPNone || old.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	now, was := s.IPFamilies, old.IPFamilies
	var errs field.ErrorList
	if len(now) == len(was) {
		for i := range was {
			if now[i] != was[i] {
				errs = append(errs, field.Invalid(at.Index(0), now, fixed))
			}
		}
		return errs
	}
	if len(was) > len(now) && len(s.ClusterIPs) == 0 {
		errs = append(errs, field.Invalid(at.Index(0), now, "primary ipFamily can not be unset"))
	}
	if len(now) > 0 && len(was) > 0 && now[0] != was[0] {
		errs = append(errs, field.Invalid(at.Index(0), s.ClusterIPs, fixed))
	}
	if len(was) > len(now) && len(now) == 1 &&
		(s.IPFamilyPolicy == nil || *s.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), s.IPFamilyPolicy,
			"must be set to 'SingleStack' when releasing the secondary ipFamily"))
	}
	return errs
}

// validateClusterIPsUpdate: an address is released only with a change to a type without addresses;
// a second one may be added and removed.
func validateClusterIPsUpdate(s, old *corev1.Service, at *field.Path) field.ErrorList {
	const fixed = "may not change once set"
	if s.Spec.Type == corev1.ServiceTypeExternalName || old.Spec.Type == corev1.ServiceTypeExternalName ||
		s.Spec.ClusterIP == corev1.ClusterIPNone && old.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	now, was := s.Spec.ClusterIPs, old.Spec.ClusterIPs
	at = at.Child("clusterIPs")
	var errs field.ErrorList
	switch {
	case len(was) > 0 && len(now) == 0:
		errs = append(errs, field.Invalid(at.Index(0), now, "primary clusterIP can not be unset"))
	case len(was) == len(now):
		for i := range was {
			if now[i] != was[i] {
				errs = append(errs, field.Invalid(at.Index(i), now, fixed))
			}
		}
	case len(was) > 0 && now[0] != was[0]:
		errs = append(errs, field.Invalid(at.Index(0), now, fixed))
	}
	if len(was) > len(now) && len(now) == 1 &&
		(s.Spec.IPFamilyPolicy == nil || *s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), s.Spec.IPFamilyPolicy,
			"must be set to 'SingleStack' when releasing the secondary clusterIP"))
	}
	return errs
}

func validateServiceStatusUpdate(s, old *corev1.Service) field.ErrorList {
	at := field.NewPath("status", "loadBalancer", "ingress")
	list := s.Status.LoadBalancer.Ingress
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer && len(list) > 0 {
		return field.ErrorList{field.Forbidden(at, "may only be used when `spec.type` is 'LoadBalancer'")}
	}
	known := sets.New[string]()
	for _, in := range old.Status.LoadBalancer.Ingress {
		known.Insert(in.IP)
	}
	var errs field.ErrorList
	for i, in := range list {
		at := at.Index(i)
		if in.IP != "" {
			errs = append(errs, rules.LegacyIP(at.Child("ip"), in.IP, known)...)
		}
		switch mode := at.Child("ipMode"); {
		case in.IPMode == nil && in.IP != "":
			errs = append(errs, field.Required(mode, "must be specified when `ip` is set"))
		case in.IPMode != nil && in.IP == "":
			errs = append(errs, field.Forbidden(mode, "may not be specified when `ip` is not set"))
		case in.IPMode != nil:
			errs = append(errs,
				rules.Supported(string(*in.IPMode), mode, string(corev1.LoadBalancerIPModeProxy),
					string(corev1.LoadBalancerIPModeVIP))...)
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

func serviceWarnings(_ context.Context, obj, _ runtime.Object) []string {
	s := obj.(*corev1.Service)
	at := field.NewPath("spec")
	var out []string
	if _, ok := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		out = append(out, fmt.Sprintf("annotation %s is deprecated, please use %s instead",
			corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode))
	}
	headless, external := s.Spec.ClusterIP == corev1.ClusterIPNone, s.Spec.Type == corev1.ServiceTypeExternalName
	if !headless {
		for i, ip := range s.Spec.ClusterIPs {
			out = append(out, validation.GetWarningsForIP(at.Child("clusterIPs").Index(i), ip)...)
		}
	}
	if headless && s.Spec.LoadBalancerIP != "" {
		out = append(out, "spec.loadBalancerIP is ignored for headless services")
	}
	if headless && len(s.Spec.ExternalIPs) > 0 {
		out = append(out, "spec.externalIPs is ignored for headless services")
	}
	if headless && s.Spec.SessionAffinity != corev1.ServiceAffinityNone {
		out = append(out, "spec.SessionAffinity is ignored for headless services")
	}
	for i, ip := range s.Spec.ExternalIPs {
		out = append(out, validation.GetWarningsForIP(at.Child("externalIPs").Index(i), ip)...)
	}
	if len(s.Spec.ExternalIPs) > 0 && !headless && !external {
		out = append(out, "spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	if s.Spec.LoadBalancerIP != "" {
		out = append(out, validation.GetWarningsForIP(at.Child("loadBalancerIP"), s.Spec.LoadBalancerIP)...)
	}
	for i, r := range s.Spec.LoadBalancerSourceRanges {
		out = append(out, validation.GetWarningsForCIDR(at.Child("loadBalancerSourceRanges").Index(i), r)...)
	}
	if external && len(s.Spec.ExternalIPs) > 0 {
		out = append(out, fmt.Sprintf("spec.externalIPs is ignored when spec.type is %q",
			corev1.ServiceTypeExternalName))
	}
	if !external && s.Spec.ExternalName != "" {
		out = append(out, fmt.Sprintf("spec.externalName is ignored when spec.type is not %q",
			corev1.ServiceTypeExternalName))
	}
	if d := s.Spec.TrafficDistribution; d != nil && *d == corev1.ServiceTrafficDistributionPreferClose {
		out = append(out, fmt.Sprintf("spec.trafficDistribution: %q is deprecated; use %q",
			corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone))
	}
	return out
}
