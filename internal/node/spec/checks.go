package spec

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Strings of a pod become parts of files and kernel messages that are parsed again: resolv.conf and the hosts file by
// lines and blanks, the name of a profile by its own grammar. The API server validates most of them; all of them,
// including those of manifests, are validated again before they leave the agent.

var (
	errNotOneLine = errors.New("it holds a control character")
	errNotOneWord = errors.New("it is empty, or holds a blank or a control character")
)

// oneLine refuses strings that a parser would read as more than one line, or would truncate.
func oneLine(s string) error {
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return errNotOneLine
	}
	return nil
}

// oneWord refuses strings that a parser would read as more than one field of a line, or as a comment.
func oneWord(s string) error {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' || r == ';' }) {
		return errNotOneWord
	}
	return nil
}

// address refuses strings that are not IP addresses. Leading zeros are allowed, as in Kubernetes.
func address(s string) error {
	if err := oneWord(s); err != nil { // the zone of an IPv6 address is not validated by the parser
		return err
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return nil
	}
	if strings.Trim(s, "0123456789.") != "" {
		return errors.New("it is not an IP address")
	}
	return nil
}

// checkDNS refuses a resolver whose fields would be parsed as more than one value.
func checkDNS(c *corev1.PodDNSConfig) error {
	if c == nil {
		return nil
	}
	for i, s := range c.Nameservers {
		if err := address(s); err != nil {
			return fmt.Errorf("spec.dnsConfig.nameservers[%d] %q: %w", i, s, err)
		}
	}
	for i, s := range c.Searches {
		if err := oneWord(s); err != nil {
			return fmt.Errorf("spec.dnsConfig.searches[%d] %q: %w", i, s, err)
		}
	}
	for i, o := range c.Options {
		text := o.Name
		if o.Value != nil {
			text += ":" + *o.Value
		}
		if err := oneLine(text); err != nil {
			return fmt.Errorf("spec.dnsConfig.options[%d] %q: %w", i, text, err)
		}
	}
	return nil
}

// checkHosts refuses names and addresses that would be parsed as more than one entry of a hosts file.
func checkHosts(pod *corev1.Pod) error {
	for i, a := range pod.Spec.HostAliases {
		if err := address(a.IP); err != nil {
			return fmt.Errorf("spec.hostAliases[%d].ip %q: %w", i, a.IP, err)
		}
		for j, name := range a.Hostnames {
			if err := oneWord(name); err != nil {
				return fmt.Errorf("spec.hostAliases[%d].hostnames[%d] %q: %w", i, j, name, err)
			}
		}
	}
	return nil
}

// checkHostname refuses a name that is more than one word, for the hosts file and the kernel.
func checkHostname(name string) error {
	if err := oneWord(name); err != nil {
		return fmt.Errorf("host name %q: %w", name, err)
	}
	return nil
}

// longestProfile is how long the name of an AppArmor profile may be.
const longestProfile = 4095

// checkProfile refuses the name of an AppArmor profile that would be parsed as more than one name: the kernel gets
// command and name in one text.
func checkProfile(p *cri.SecurityProfile) error {
	if p.GetProfileType() != cri.SecurityProfile_Localhost {
		return nil
	}
	name := p.LocalhostRef
	switch {
	case name == "":
		return errors.New("localhostProfile must be set if appArmorProfile type is Localhost")
	case len(name) > longestProfile:
		return fmt.Errorf("the AppArmor profile's name has more than %d characters", longestProfile)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("AppArmor profile %q: it begins or ends with a blank", name)
	case strings.ContainsAny(name, "\t") || oneLine(name) != nil:
		return fmt.Errorf("AppArmor profile %q: %w", name, errNotOneLine)
	}
	return nil
}

// unmasked reports whether a container has an unmasked /proc and /sys, which requires its own user namespace: otherwise
// its root could write to the host's kernel (L3.161).
func unmasked(pod *corev1.Pod, c *corev1.Container) (bool, error) {
	if c.SecurityContext == nil || c.SecurityContext.ProcMount == nil {
		return false, nil
	}
	switch m := *c.SecurityContext.ProcMount; m {
	case corev1.DefaultProcMount:
		return false, nil
	case corev1.UnmaskedProcMount:
		if !usesUserNS(pod) {
			return false, fmt.Errorf("container %q: procMount Unmasked needs `hostUsers: false`", c.Name)
		}
		return true, nil
	default:
		return false, fmt.Errorf("container %q: procMount %q is neither Default nor Unmasked", c.Name, m)
	}
}
