package pods

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

func validatePodSecurityContext(s *corev1.PodSpec, keptSysctls bool, at *field.Path) field.ErrorList {
	c := s.SecurityContext
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	if c.FSGroup != nil {
		errs = append(errs, rules.Messages(at.Child("fsGroup"), *c.FSGroup, validation.IsValidGroupID(*c.FSGroup))...)
	}
	if c.RunAsUser != nil {
		errs = append(errs, rules.Messages(at.Child("runAsUser"), *c.RunAsUser,
			validation.IsValidUserID(*c.RunAsUser))...)
	}
	if c.RunAsGroup != nil {
		errs = append(errs, rules.Messages(at.Child("runAsGroup"), *c.RunAsGroup,
			validation.IsValidGroupID(*c.RunAsGroup))...)
	}
	for i, g := range c.SupplementalGroups {
		errs = append(errs, rules.Messages(at.Child("supplementalGroups").Index(i), g, validation.IsValidGroupID(g))...)
	}
	if p := c.SupplementalGroupsPolicy; p != nil {
		errs = append(errs, rules.Supported(string(*p), at.Child("supplementalGroupsPolicy"),
			string(corev1.SupplementalGroupsPolicyMerge), string(corev1.SupplementalGroupsPolicyStrict))...)
	}
	if p := c.FSGroupChangePolicy; p != nil {
		errs = append(errs, rules.Supported(string(*p), at.Child("fsGroupChangePolicy"),
			string(corev1.FSGroupChangeAlways), string(corev1.FSGroupChangeOnRootMismatch))...)
	}
	if p := c.SELinuxChangePolicy; p != nil {
		errs = append(errs, rules.Supported(string(*p), at.Child("seLinuxChangePolicy"),
			string(corev1.SELinuxChangePolicyMountOption), string(corev1.SELinuxChangePolicyRecursive))...)
	}
	if s.ShareProcessNamespace != nil && s.HostPID && *s.ShareProcessNamespace {
		errs = append(errs, field.Invalid(at.Child("shareProcessNamespace"), *s.ShareProcessNamespace,
			"ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	errs = append(errs, validateWindowsOptions(c.WindowsOptions, at.Child("windowsOptions"))...)
	errs = append(errs, validateSysctls(s, c.Sysctls, keptSysctls, at.Child("sysctls"))...)
	errs = append(errs, validateSeccomp(c.SeccompProfile, at.Child("seccompProfile"))...)
	return append(errs, validateAppArmor(c.AppArmorProfile, at.Child("appArmorProfile"))...)
}

// hostSysctl returns the field by which the pod shares the host's value of a sysctl; empty if the
// pod has its own.
func hostSysctl(s *corev1.PodSpec, name string) string {
	name = strings.ReplaceAll(name, "/", ".")
	switch {
	case s.HostNetwork && strings.HasPrefix(name, "net."):
		return "hostNetwork"
	case s.HostIPC && (strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") ||
		name == "kernel.sem" || strings.HasPrefix(name, "fs.mqueue.")):
		return "hostIPC"
	}
	return ""
}

func validateSysctls(s *corev1.PodSpec, list []corev1.Sysctl, keptHost bool, at *field.Path) field.ErrorList {
	const longest = 253
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, c := range list {
		at := at.Index(i).Child("name")
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(at, ""))
		case len(c.Name) > longest || !sysctlName.MatchString(c.Name):
			errs = append(errs,
				field.Invalid(at, c.Name, "must have at most 253 characters and match regex "+sysctlName.String()))
		case seen.Has(c.Name):
			errs = append(errs, field.Duplicate(at, c.Name))
		}
		seen.Insert(c.Name)
		if host := hostSysctl(s, c.Name); host != "" && !keptHost {
			errs = append(errs, field.Invalid(at, c.Name, fmt.Sprintf("may not be specified when '%s' is true", host)))
		}
	}
	return errs
}

func validateSeccomp(p *corev1.SeccompProfile, at *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := rules.Supported(string(p.Type), at.Child("type"), string(corev1.SeccompProfileTypeLocalhost),
		string(corev1.SeccompProfileTypeRuntimeDefault), string(corev1.SeccompProfileTypeUnconfined))
	if p.Type == "" {
		errs = field.ErrorList{field.Required(at.Child("type"), "type is required when seccompProfile is set")}
	}
	switch {
	case p.Type == corev1.SeccompProfileTypeLocalhost && p.LocalhostProfile == nil:
		errs = append(errs, field.Required(at.Child("localhostProfile"), "must be set when seccomp type is Localhost"))
	case p.Type == corev1.SeccompProfileTypeLocalhost:
		errs = append(errs, rules.DescendingPath(*p.LocalhostProfile, at.Child("localhostProfile"))...)
	case p.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(at.Child("localhostProfile"), p,
			"can only be set when seccomp type is Localhost"))
	}
	return errs
}

func validateAppArmor(p *corev1.AppArmorProfile, at *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	const longest = 4095 // of a path
	local := at.Child("localhostProfile")
	var errs field.ErrorList
	switch p.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		switch {
		case p.LocalhostProfile == nil || *p.LocalhostProfile == "":
			return field.ErrorList{field.Required(local, "must be set when AppArmor type is Localhost")}
		case strings.TrimSpace(*p.LocalhostProfile) != *p.LocalhostProfile:
			errs = append(errs, field.Invalid(local, *p.LocalhostProfile, "must not be padded with whitespace"))
		}
		if len(*p.LocalhostProfile) > longest {
			errs = append(errs, field.TooLong(local, "", longest))
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if p.LocalhostProfile != nil {
			errs = append(errs,
				field.Invalid(local, *p.LocalhostProfile, "can only be set when AppArmor type is Localhost"))
		}
	case "":
		errs = append(errs, field.Required(at.Child("type"), "type is required when appArmorProfile is set"))
	default:
		errs = append(errs, field.NotSupported(at.Child("type"), p.Type,
			[]corev1.AppArmorProfileType{corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault,
				corev1.AppArmorProfileTypeUnconfined}))
	}
	return errs
}

// ParseAppArmorAnnotation parses the deprecated annotation's value; nil if it names no profile
// (L1.6).
func ParseAppArmorAnnotation(value string) *corev1.AppArmorProfile {
	switch value {
	case corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	}
	if name, ok := strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix); ok && name != "" {
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}

func validateContainerSecurityContext(s *corev1.PodSpec, c *corev1.SecurityContext, at *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	if c.RunAsUser != nil {
		errs = append(errs, rules.Messages(at.Child("runAsUser"), *c.RunAsUser,
			validation.IsValidUserID(*c.RunAsUser))...)
	}
	if c.RunAsGroup != nil {
		errs = append(errs, rules.Messages(at.Child("runAsGroup"), *c.RunAsGroup,
			validation.IsValidGroupID(*c.RunAsGroup))...)
	}
	if m := c.ProcMount; m != nil {
		errs = append(errs, rules.Supported(string(*m), at.Child("procMount"), string(corev1.DefaultProcMount),
			string(corev1.UnmaskedProcMount))...)
		if *m == corev1.UnmaskedProcMount && (s.HostUsers == nil || *s.HostUsers) {
			errs = append(errs,
				field.Invalid(at.Child("procMount"), c.ProcMount, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	errs = append(errs, validateSeccomp(c.SeccompProfile, at.Child("seccompProfile"))...)
	errs = append(errs, validateAppArmor(c.AppArmorProfile, at.Child("appArmorProfile"))...)
	errs = append(errs, validateWindowsOptions(c.WindowsOptions, at.Child("windowsOptions"))...)
	if c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation {
		if c.Privileged != nil && *c.Privileged {
			errs = append(errs,
				field.Invalid(at, c, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if c.Capabilities != nil {
			for _, capability := range c.Capabilities.Add {
				if capability == "CAP_SYS_ADMIN" {
					errs = append(errs,
						field.Invalid(at, c,
							"cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
				}
			}
		}
	}
	return errs
}
