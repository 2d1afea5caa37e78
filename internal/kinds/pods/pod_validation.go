package pods

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/core/resources"
	"carob/internal/kinds/rules"
)

// ValidatePodCreate validates a new pod, including its metadata.
func ValidatePodCreate(p *corev1.Pod) field.ErrorList {
	errs := ValidatePod(p)
	if len(p.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "ephemeralContainers"), "cannot be set on create"))
	}
	return errs
}

// changedPod validates a pod that replaces another one. It may keep errors of the stored pod that
// older rules accepted.
func changedPod(p, old *corev1.Pod) field.ErrorList {
	return checkPod(p, podFaults{
		selectors: hasBadSpread(&old.Spec), tokenPaths: hasBadTokenPath(&old.Spec), sysctls: hasHostSysctl(&old.Spec),
		devices:  hasMappedDevice(&old.Spec),
		restarts: restartsInit(&old.Spec), annotations: true, comparisons: hasComparisons(old.Spec.Tolerations),
		deletionCost: badDeletionCost(old.Annotations),
		hugePages:    hasBrokenPages(&old.Spec), nodeValues: hasBadNodeValues(old.Spec.Affinity),
		podValues: hasBadPodValues(old.Spec.Affinity),
		noImage: slices.ContainsFunc(old.Spec.Volumes,
			func(v corev1.Volume) bool { return v.Image != nil && v.Image.Reference == "" }),
	})
}

// podFaults are the errors that a pod may have because the stored one has them.
type podFaults struct {
	selectors  bool // in topologySpreadConstraints
	tokenPaths bool // in projected tokens, paths outside their volumes
	sysctls    bool // host namespaces
	devices    bool // in a user namespace
	restarts   bool // resize policies of init containers
	// Tolerations that compare numbers; upstream accepts them only with the gate
	// TaintTolerationComparisonOperators.
	comparisons bool
	// Annotations about containers that do not exist: an update may not add one.
	annotations  bool
	deletionCost bool // it is not a number
	hugePages    bool // fractions of a huge page
	nodeValues   bool // in required node affinity, invalid as labels
	podValues    bool // in the selectors of pod affinity, invalid as labels
	noImage      bool // in an image volume
}

func hasBadSpread(s *corev1.PodSpec) bool {
	for i := range s.TopologySpreadConstraints {
		if len(metav1validation.ValidateLabelSelector(s.TopologySpreadConstraints[i].LabelSelector,
			metav1validation.LabelSelectorValidationOptions{}, nil)) > 0 {
			return true
		}
	}
	return false
}

func hasHostSysctl(s *corev1.PodSpec) bool {
	return s.SecurityContext != nil &&
		slices.ContainsFunc(s.SecurityContext.Sysctls,
			func(c corev1.Sysctl) bool { return hostSysctl(s, c.Name) != "" })
}

func hasMappedDevice(s *corev1.PodSpec) bool {
	return s.HostUsers != nil && !*s.HostUsers &&
		slices.ContainsFunc(s.Containers, func(c corev1.Container) bool { return len(c.VolumeDevices) > 0 })
}

// restartsInit reports whether a resize would restart an init container that is not a sidecar.
func restartsInit(s *corev1.PodSpec) bool {
	return slices.ContainsFunc(s.InitContainers, func(c corev1.Container) bool {
		return !resources.IsSidecar(&c) &&
			slices.ContainsFunc(c.ResizePolicy,
				func(p corev1.ContainerResizePolicy) bool { return p.RestartPolicy == corev1.RestartContainer })
	})
}

func hasBadTokenPath(s *corev1.PodSpec) bool {
	for _, v := range s.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if t := source.ServiceAccountToken; t != nil && len(validateVolumeFile(t.Path, nil)) > 0 {
				return true
			}
		}
	}
	return false
}

// tokensNeedAccount: projected tokens are those of the pod's service account.
func (k *podChecker) tokensNeedAccount(path *field.Path) field.ErrorList {
	if !k.pod || k.spec.ServiceAccountName != "" {
		return nil
	}
	var errs field.ErrorList
	for i, v := range k.spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for j, source := range v.Projected.Sources {
			if source.ServiceAccountToken != nil {
				errs = append(errs,
					field.Forbidden(path.Child("volumes").Index(i).Child("projected",
						"sources").Index(j).Child("serviceAccountToken"),
						"must not be specified when serviceAccountName is not set"))
			}
		}
	}
	return errs
}

// ValidatePod validates a whole pod.
func ValidatePod(p *corev1.Pod) field.ErrorList { return checkPod(p, podFaults{}) }

func checkPod(p *corev1.Pod, kept podFaults) field.ErrorList {
	meta := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMeta(&p.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, meta)
	errs = append(errs, rules.Finalizers(p.Finalizers)...)
	errs = append(errs, validatePodAnnotations(&p.ObjectMeta, &p.Spec, kept, meta.Child("annotations"))...)
	errs = append(errs, validateAnnotatedProfiles(&p.ObjectMeta, &p.Spec, !kept.annotations, field.NewPath("spec"))...)
	errs = append(errs,
		(&podChecker{spec: &p.Spec, pod: true, name: p.Name, kept: kept}).check(field.NewPath("spec"))...)
	return errs
}

func containerNamed(s *corev1.PodSpec, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// ValidateTemplate validates the template of a workload.
func ValidateTemplate(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabels(t.Labels, path.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(t.Annotations, path.Child("annotations"))...)
	errs = append(errs, validatePodAnnotations(&t.ObjectMeta, &t.Spec, podFaults{}, path.Child("annotations"))...)
	errs = append(errs, (&podChecker{spec: &t.Spec}).check(path.Child("spec"))...)
	errs = append(errs, validateAnnotatedProfiles(&t.ObjectMeta, &t.Spec, true, path.Child("spec"))...)
	if len(t.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("spec", "ephemeralContainers"),
			"ephemeral containers not allowed in pod template"))
	}
	return errs
}

// podChecker validates one pod spec. pod is false for a workload's template.
type podChecker struct {
	spec    *corev1.PodSpec
	pod     bool
	name    string // of the pod
	kept    podFaults
	volumes map[string]*corev1.VolumeSource
}

func (k *podChecker) check(path *field.Path) field.ErrorList {
	s := k.spec
	var errs field.ErrorList
	add := func(more field.ErrorList) { errs = append(errs, more...) }

	add(k.checkVolumes(path.Child("volumes")))
	add(k.checkContainers(path))
	add(k.tokensNeedAccount(path))
	add(rules.OneOf(string(s.RestartPolicy), path.Child("restartPolicy"), string(corev1.RestartPolicyAlways),
		string(corev1.RestartPolicyOnFailure), string(corev1.RestartPolicyNever)))
	add(rules.OneOf(string(s.DNSPolicy), path.Child("dnsPolicy"), string(corev1.DNSClusterFirstWithHostNet),
		string(corev1.DNSClusterFirst), string(corev1.DNSDefault), string(corev1.DNSNone)))
	add(metav1validation.ValidateLabels(s.NodeSelector, path.Child("nodeSelector")))
	add(validatePodSecurityContext(s, k.kept.sysctls, path.Child("securityContext")))
	add(validateAffinity(s.Affinity, k.kept, path.Child("affinity")))
	add(validateDNSConfig(s.DNSConfig, s.DNSPolicy, path.Child("dnsConfig")))
	add(validateReadinessGates(s.ReadinessGates, path.Child("readinessGates")))
	add(validateSchedulingGates(s, path.Child("schedulingGates")))
	add(validateTopologySpread(s.TopologySpreadConstraints, k.kept.selectors, path.Child("topologySpreadConstraints")))
	add(validateHostProcesses(s, path))
	add(validateHostUsers(s, k.kept.devices, path))
	add(validateHostname(s, path))
	add(ValidateTolerations(s.Tolerations, k.kept.comparisons, path.Child("tolerations")))
	add(validateHostAliases(s.HostAliases, path.Child("hostAliases")))
	add(validatePodResources(s, k.kept, path))
	add(validateResourceClaims(s.ResourceClaims, path.Child("resourceClaims")))

	if s.ServiceAccountName != "" {
		add(rules.Messages(path.Child("serviceAccountName"), s.ServiceAccountName,
			apivalidation.ValidateServiceAccountName(s.ServiceAccountName, false)))
	}
	if s.NodeName != "" {
		add(rules.Messages(path.Child("nodeName"), s.NodeName, apivalidation.NameIsDNSSubdomain(s.NodeName, false)))
	}
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *d,
			validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	if s.PriorityClassName != "" {
		add(rules.Messages(path.Child("priorityClassName"), s.PriorityClassName,
			apivalidation.NameIsDNSSubdomain(s.PriorityClassName, false)))
	}
	if s.RuntimeClassName != nil {
		add(rules.Messages(path.Child("runtimeClassName"), *s.RuntimeClassName,
			apivalidation.NameIsDNSSubdomain(*s.RuntimeClassName, false)))
	}
	if s.PreemptionPolicy != nil {
		add(rules.OneOf(string(*s.PreemptionPolicy), path.Child("preemptionPolicy"),
			string(corev1.PreemptLowerPriority), string(corev1.PreemptNever)))
	}
	add(rules.ResourceRequirements(&corev1.ResourceRequirements{Limits: s.Overhead}, k.kept.hugePages,
		path.Child("overhead")))
	if s.OS != nil {
		if s.OS.Name == "" {
			errs = append(errs, field.Required(path.Child("os", "name"), ""))
		} else {
			add(rules.Supported(string(s.OS.Name), path.Child("os"), string(corev1.Linux), string(corev1.Windows)))
		}
	}
	return errs
}

func validateDNSConfig(c *corev1.PodDNSConfig, policy corev1.DNSPolicy, path *field.Path) field.ErrorList {
	const maxNameservers, maxSearches, maxSearchChars = 3, 32, 2048 // L1.50
	var errs field.ErrorList
	if policy == corev1.DNSNone {
		if c == nil {
			return field.ErrorList{field.Required(path,
				fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", corev1.DNSNone))}
		}
		if len(c.Nameservers) == 0 {
			return field.ErrorList{field.Required(path.Child("nameservers"),
				fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", corev1.DNSNone))}
		}
	}
	if c == nil {
		return nil
	}
	if len(c.Nameservers) > maxNameservers {
		errs = append(errs, field.Invalid(path.Child("nameservers"), c.Nameservers,
			fmt.Sprintf("must not have more than %v nameservers", maxNameservers)))
	}
	for i, ns := range c.Nameservers {
		errs = append(errs, validation.IsValidIPForLegacyField(path.Child("nameservers").Index(i), ns, true, nil)...)
	}
	if len(c.Searches) > maxSearches {
		errs = append(errs, field.Invalid(path.Child("searches"), c.Searches,
			fmt.Sprintf("must not have more than %v search paths", maxSearches)))
	}
	if len(strings.Join(c.Searches, " ")) > maxSearchChars {
		errs = append(errs, field.Invalid(path.Child("searches"), c.Searches,
			fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", maxSearchChars)))
	}
	for i, search := range c.Searches {
		if search == "." {
			continue
		}
		errs = append(errs, rules.Messages(path.Child("searches").Index(i), search,
			validation.IsDNS1123SubdomainWithUnderscore(strings.TrimSuffix(search, ".")))...)
	}
	for i, option := range c.Options {
		if option.Name == "" {
			errs = append(errs, field.Required(path.Child("options").Index(i), "must not be empty"))
		}
	}
	return errs
}

func validateReadinessGates(gates []corev1.PodReadinessGate, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, g := range gates {
		errs = append(errs, rules.Messages(path.Index(i).Child("conditionType"), string(g.ConditionType),
			validation.IsQualifiedName(string(g.ConditionType)))...)
	}
	return errs
}

func validateSchedulingGates(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, g := range s.SchedulingGates {
		errs = append(errs, rules.Messages(path.Index(i), g.Name, validation.IsQualifiedName(g.Name))...)
		if seen.Has(g.Name) {
			errs = append(errs, field.Duplicate(path.Index(i), g.Name))
		}
		seen.Insert(g.Name)
	}
	return errs
}

func validateHostUsers(s *corev1.PodSpec, keptDevices bool, path *field.Path) field.ErrorList {
	if s.HostUsers == nil || *s.HostUsers {
		return nil
	}
	var errs field.ErrorList
	if s.HostNetwork {
		errs = append(errs, field.Forbidden(path.Child("hostNetwork"), "when `hostUsers` is false"))
	}
	if s.HostPID {
		errs = append(errs, field.Forbidden(path.Child("hostPID"), "when `hostUsers` is false"))
	}
	if s.HostIPC {
		errs = append(errs, field.Forbidden(path.Child("hostIPC"), "when `hostUsers` is false"))
	}
	for i := range s.Containers {
		if !keptDevices && len(s.Containers[i].VolumeDevices) > 0 {
			errs = append(errs,
				field.Forbidden(path.Child("containers").Index(i).Child("volumeDevices"), "when `hostUsers` is false"))
		}
	}
	return errs
}

func validateHostname(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Hostname != "" {
		errs = append(errs, rules.Messages(path.Child("hostname"), s.Hostname,
			validation.IsDNS1123Label(s.Hostname))...)
	}
	if s.Subdomain != "" {
		errs = append(errs, rules.Messages(path.Child("subdomain"), s.Subdomain,
			validation.IsDNS1123Label(s.Subdomain))...)
	}
	if s.HostnameOverride == nil {
		return errs
	}
	const maxHostname = 64 // of the kernel (L1.49)
	override := path.Child("hostnameOverride")
	errs = append(errs, rules.Messages(override, *s.HostnameOverride,
		validation.IsDNS1123Subdomain(*s.HostnameOverride))...)
	if len(*s.HostnameOverride) > maxHostname {
		errs = append(errs, field.TooLong(override, "", maxHostname))
	}
	if s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN {
		errs = append(errs, field.Forbidden(path.Child("setHostnameAsFQDN"),
			"may not be set to true when `hostnameOverride` is specified"))
	}
	if s.HostNetwork {
		errs = append(errs, field.Forbidden(override, "may not be specified when `hostNetwork` is true"))
	}
	return errs
}

func validateHostAliases(aliases []corev1.HostAlias, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, a := range aliases {
		errs = append(errs, validation.IsValidIPForLegacyField(path.Index(i).Child("ip"), a.IP, true, nil)...)
		for j, name := range a.Hostnames {
			errs = append(errs,
				rules.Messages(path.Index(i).Child("hostnames").Index(j), name, validation.IsDNS1123Subdomain(name))...)
		}
	}
	return errs
}

func hasComparisons(list []corev1.Toleration) bool {
	return slices.ContainsFunc(list, func(t corev1.Toleration) bool {
		return t.Operator == corev1.TolerationOpLt || t.Operator == corev1.TolerationOpGt
	})
}

// ValidateTolerations validates tolerations; comparisons: they may compare numbers.
func ValidateTolerations(list []corev1.Toleration, comparisons bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		t, at := &list[i], path.Index(i)
		if t.Key != "" {
			errs = append(errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
		} else if t.Operator != corev1.TolerationOpExists {
			errs = append(errs,
				field.Invalid(at.Child("operator"), t.Operator,
					"operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			errs = append(errs,
				field.Invalid(at.Child("effect"), t.Effect,
					"effect must be 'NoExecute' when `tolerationSeconds` is set"))
		}
		switch t.Operator {
		case corev1.TolerationOpEqual, "":
			if msgs := validation.IsValidLabelValue(t.Value); len(msgs) > 0 {
				errs = append(errs, field.Invalid(at.Child("operator"), t.Value, strings.Join(msgs, ";")))
			}
		case corev1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs,
					field.Invalid(at.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'"))
			}
		case corev1.TolerationOpLt, corev1.TolerationOpGt:
			if !comparisons {
				errs = append(errs,
					field.NotSupported(at.Child("operator"), t.Operator,
						[]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists,
							corev1.TolerationOpLt, corev1.TolerationOpGt}))
				break
			}
			errs = append(errs, rules.Messages(at.Child("value"), t.Value, content.IsDecimalInteger(t.Value))...)
			if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil {
				errs = append(errs, field.Invalid(at.Child("value"), t.Value, err.Error()))
			}
		default:
			errs = append(errs,
				field.NotSupported(at.Child("operator"), t.Operator,
					[]string{string(corev1.TolerationOpEqual), string(corev1.TolerationOpExists)}))
		}
		if t.Effect != "" {
			errs = append(errs, ValidateTaintEffect(t.Effect, at.Child("effect"))...)
		}
	}
	return errs
}

// ValidateTaintEffect validates the effect of a taint or a toleration; the error lists the values
// in their order.
func ValidateTaintEffect(e corev1.TaintEffect, path *field.Path) field.ErrorList {
	switch e {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		return nil
	case "":
		return field.ErrorList{field.Required(path, "")}
	}
	return field.ErrorList{field.NotSupported(path, e,
		[]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
			corev1.TaintEffectNoExecute})}
}

func validateResourceClaims(claims []corev1.PodResourceClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, c := range claims {
		at := path.Index(i)
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case seen.Has(c.Name):
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		default:
			errs = append(errs, rules.Messages(at.Child("name"), c.Name, validation.IsDNS1123Label(c.Name))...)
			seen.Insert(c.Name)
		}
		if n := c.ResourceClaimName; n != nil {
			errs = append(errs,
				rules.Messages(at.Child("resourceClaimName"), *n, apivalidation.NameIsDNSSubdomain(*n, false))...)
		}
		if n := c.ResourceClaimTemplateName; n != nil {
			errs = append(errs,
				rules.Messages(at.Child("resourceClaimTemplateName"), *n,
					apivalidation.NameIsDNSSubdomain(*n, false))...)
		}
		switch {
		case c.ResourceClaimName != nil && c.ResourceClaimTemplateName != nil:
			errs = append(errs,
				field.Invalid(at, c,
					"at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"))
		case c.ResourceClaimName == nil && c.ResourceClaimTemplateName == nil:
			errs = append(errs,
				field.Invalid(at, c, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		}
	}
	return errs
}

// validatePodResources validates the pod-level resources against its own limits and its containers'
// requests.
func validatePodResources(s *corev1.PodSpec, kept podFaults, path *field.Path) field.ErrorList {
	r := s.Resources
	if r == nil {
		return nil
	}
	at := path.Child("resources")
	var errs field.ErrorList
	if r.Claims != nil {
		errs = append(errs, field.Forbidden(at.Child("claims"), "claims may not be set for Resources at pod-level"))
	}
	errs = append(errs, (&podChecker{spec: s}).claims(r.Claims, at.Child("claims"))...)
	errs = append(errs, rules.WholeRequirements(r, kept.hugePages, at)...)
	if len(errs) > 0 {
		return errs
	}
	whole := &corev1.Pod{Spec: *s}
	whole.Spec.Resources, whole.Spec.Overhead = nil, nil
	for name, sum := range resources.SpecRequests(whole) {
		if q, ok := r.Requests[name]; ok && sum.Cmp(q) > 0 {
			errs = append(errs, field.Invalid(at.Child("requests").Key(string(name)), q.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String())))
		}
	}
	for i := range s.Containers {
		for name, q := range s.Containers[i].Resources.Limits {
			if limit, ok := r.Limits[name]; ok && q.Cmp(limit) > 0 {
				errs = append(errs,
					field.Invalid(path.Child("containers").Index(i).Child("resources", "limits").Key(string(name)),
						q.String(),
						fmt.Sprintf("must be less than or equal to pod limits of %s", limit.String())))
			}
		}
	}
	return errs
}

// hasBrokenPages reports whether a pod requests fractions of huge pages.
func hasBrokenPages(s *corev1.PodSpec) bool {
	broken := func(list corev1.ResourceList) bool {
		for name, q := range list {
			if !rules.WholePages(name, q) {
				return true
			}
		}
		return false
	}
	for c := range containersOf(s, rules.SpecPath) {
		if broken(c.Resources.Limits) || broken(c.Resources.Requests) {
			return true
		}
	}
	return broken(s.Overhead)
}
