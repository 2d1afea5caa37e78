package pods

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

var (
	controlCharacters = regexp.MustCompile(`[[:cntrl:]]+`)
	netBIOSName       = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	windowsDomain     = regexp.MustCompile(
		`^(?i)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*$`)
	dotsAndSpaces = regexp.MustCompile(`^[\. ]+$`)
)

// validateWindowsOptions validates the options of Windows nodes; carob has no Windows nodes, but
// stores pods for them.
func validateWindowsOptions(o *corev1.WindowsSecurityContextOptions, at *field.Path) field.ErrorList {
	const maxSpec = 64 << 10
	if o == nil {
		return nil
	}
	var errs field.ErrorList
	if n := o.GMSACredentialSpecName; n != nil {
		errs = append(errs, rules.Messages(at.Child("gmsaCredentialSpecName"), *n,
			validation.IsDNS1123Subdomain(*n))...)
	}
	if s := o.GMSACredentialSpec; s != nil && *s == "" {
		errs = append(errs, field.Invalid(at.Child("gmsaCredentialSpec"), *s,
			"gmsaCredentialSpec cannot be an empty string"))
	} else if s != nil && len(*s) > maxSpec {
		errs = append(errs, field.Invalid(at.Child("gmsaCredentialSpec"), *s,
			"gmsaCredentialSpec size must be under 64 KiB"))
	}
	if u := o.RunAsUserName; u != nil {
		errs = append(errs, rules.Messages(at.Child("runAsUserName"), *u, windowsUser(*u))...)
	}
	return errs
}

// windowsUser returns the errors of a user's name, DOMAIN\user or user.
func windowsUser(name string) []string {
	const maxDomain, maxUser = 256, 104
	domain, user, hasDomain := strings.Cut(name, `\`)
	if !hasDomain {
		domain, user = "", name
	}
	switch {
	case name == "":
		return []string{"runAsUserName cannot be an empty string"}
	case controlCharacters.MatchString(name):
		return []string{"runAsUserName cannot contain control characters"}
	case strings.Contains(user, `\`):
		return []string{"runAsUserName cannot contain more than one backslash"}
	}
	var wrong []string
	for _, rule := range []struct {
		broken  bool
		message string
	}{
		{len(domain) >= maxDomain, fmt.Sprintf("runAsUserName's Domain length must be under %d characters", maxDomain)},
		{hasDomain && !netBIOSName.MatchString(domain) && !windowsDomain.MatchString(domain),
			"runAsUserName's Domain doesn't match the NetBios nor the DNS format"},
		{user == "", "runAsUserName's User cannot be empty"},
		{len(user) > maxUser, fmt.Sprintf("runAsUserName's User length must not be longer than %d characters",
			maxUser)},
		{dotsAndSpaces.MatchString(user), "runAsUserName's User cannot contain only periods or spaces"},
		{strings.ContainsAny(user, `"/\:;|=,+*?<>@[]`),
			`runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]`},
	} {
		if rule.broken {
			wrong = append(wrong, rule.message)
		}
	}
	return wrong
}

// validateHostProcesses checks that either all containers of a pod are host processes or none, and
// that a pod with host processes is in the host network.
func validateHostProcesses(s *corev1.PodSpec, at *field.Path) field.ErrorList {
	var ofPod *bool
	if c := s.SecurityContext; c != nil && c.WindowsOptions != nil {
		ofPod = c.WindowsOptions.HostProcess
	}
	var errs field.ErrorList
	all, hosted := 0, 0
	visit := func(c *corev1.SecurityContext, at *field.Path) {
		all++
		own := ofPod
		if c != nil && c.WindowsOptions != nil && c.WindowsOptions.HostProcess != nil {
			own = c.WindowsOptions.HostProcess
			if ofPod != nil && *ofPod != *own {
				errs = append(errs,
					field.Invalid(at.Child("securityContext", "windowsOptions", "hostProcess"), *own,
						fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *ofPod)))
			}
		}
		if own != nil && *own {
			hosted++
		}
	}
	for i := range s.InitContainers {
		visit(s.InitContainers[i].SecurityContext, at.Child("initContainers").Index(i))
	}
	for i := range s.Containers {
		visit(s.Containers[i].SecurityContext, at.Child("containers").Index(i))
	}
	for i := range s.EphemeralContainers {
		visit(s.EphemeralContainers[i].SecurityContext, at.Child("ephemeralContainers").Index(i))
	}
	if hosted == 0 {
		return errs
	}
	if hosted != all {
		errs = append(errs,
			field.Invalid(at, "",
				"If pod contains any hostProcess containers then all containers must be HostProcess containers"))
	}
	if !s.HostNetwork {
		errs = append(errs, field.Invalid(at.Child("hostNetwork"), s.HostNetwork,
			"hostNetwork must be true if pod contains any hostProcess containers"))
	}
	return errs
}
