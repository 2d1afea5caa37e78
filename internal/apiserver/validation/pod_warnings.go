package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// deprecatedNodeLabels are old names of well-known node labels and their successors.
var deprecatedNodeLabels = map[string]string{
	"beta.kubernetes.io/arch":                  corev1.LabelArchStable,
	"beta.kubernetes.io/os":                    corev1.LabelOSStable,
	"failure-domain.beta.kubernetes.io/region": corev1.LabelTopologyRegion,
	"failure-domain.beta.kubernetes.io/zone":   corev1.LabelTopologyZone,
	"beta.kubernetes.io/instance-type":         corev1.LabelInstanceTypeStable,
}

// PodWarnings are hints about a pod that is valid but probably not what its author means. old is nil on create.
func PodWarnings(p, old *corev1.Pod) []string {
	var out []string
	if old == nil {
		// Mirror and bare pods become host names; a name with dots is cut there (L1.7).
		if msgs := validation.IsDNS1123Label(p.Name); p.Name != "" && len(msgs) > 0 {
			out = append(out, fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
		}
		for _, key := range slices.Sorted(maps.Keys(p.Annotations)) {
			name, ok := strings.CutPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
			if !ok {
				continue
			}
			// The server itself keeps the annotation in step with the field; only an annotation alone is the client's.
			if c := containerNamed(&p.Spec, name); c == nil || c.SecurityContext == nil || c.SecurityContext.AppArmorProfile == nil ||
				AppArmorAnnotation(c.SecurityContext.AppArmorProfile) == p.Annotations[key] && p.Spec.SecurityContext.AppArmorProfile == nil {
				out = append(out, fmt.Sprintf(`metadata.annotations[%s]: deprecated since v1.30; use the "appArmorProfile" field instead`, key))
			}
		}
	}
	return append(out, podSpecWarnings(&p.Spec, field.NewPath("spec"))...)
}

// templateWarnings are the hints about a workload's pod template.
func templateWarnings(t *corev1.PodTemplateSpec, at *field.Path) []string {
	return podSpecWarnings(&t.Spec, at.Child("spec"))
}

func podSpecWarnings(s *corev1.PodSpec, at *field.Path) []string {
	var out []string
	say := func(at *field.Path, format string, args ...any) {
		out = append(out, at.String()+": "+fmt.Sprintf(format, args...))
	}
	for _, key := range slices.Sorted(maps.Keys(s.NodeSelector)) {
		if successor, ok := deprecatedNodeLabels[key]; ok {
			say(at.Child("nodeSelector").Key(key), "deprecated since v1.14; use %q instead", successor)
		}
	}
	for i, a := range s.HostAliases {
		for j := range i {
			if s.HostAliases[j].IP == a.IP {
				say(at.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", a.IP)
			}
		}
	}
	for i, r := range s.ImagePullSecrets {
		if r.Name == "" {
			say(at.Child("imagePullSecrets").Index(i), "invalid empty name %q", r.Name)
		}
	}
	for i := range s.Volumes {
		switch v, at := &s.Volumes[i], at.Child("volumes").Index(i); {
		case v.GitRepo != nil:
			say(at.Child("gitRepo"), "deprecated in v1.11, and disabled by default in v1.33+")
		case v.Glusterfs != nil:
			say(at.Child("glusterfs"), "deprecated in v1.25, this feature will be completely removed in v1.26")
		case v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.MilliValue()%1000 != 0:
			say(at.Child("emptyDir", "sizeLimit"), "fractional byte value %q is invalid, must be an integer", v.EmptyDir.SizeLimit.String())
		}
	}
	for _, list := range []struct {
		name string
		cs   []corev1.Container
	}{{"initContainers", s.InitContainers}, {"containers", s.Containers}} {
		for i := range list.cs {
			out = append(out, containerWarnings(&list.cs[i], at.Child(list.name).Index(i))...)
		}
	}
	return out
}

func containerWarnings(c *corev1.Container, at *field.Path) []string {
	var out []string
	say := func(at *field.Path, format string, args ...any) {
		out = append(out, at.String()+": "+fmt.Sprintf(format, args...))
	}
	for _, list := range []struct {
		name string
		l    corev1.ResourceList
	}{{"limits", c.Resources.Limits}, {"requests", c.Resources.Requests}} {
		for _, name := range [...]corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			if q, ok := list.l[name]; ok && q.MilliValue()%1000 != 0 {
				say(at.Child("resources", list.name).Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
			}
		}
	}
	seen := make(map[string]string, len(c.Env))
	for i, e := range c.Env {
		// A definition that refers to the previous one extends it and hides nothing.
		if _, dup := seen[e.Name]; dup && !strings.Contains(e.Value, "$("+e.Name+")") {
			say(at.Child("env").Index(i), "hides previous definition of %q, which may be dropped when using apply", e.Name)
		}
		seen[e.Name] = e.Value
	}
	for i, p := range c.Ports {
		for j := range i {
			o := c.Ports[j]
			if o.ContainerPort == p.ContainerPort && o.Protocol == p.Protocol && o.HostPort == p.HostPort && o.HostIP == p.HostIP {
				say(at.Child("ports").Index(i), "duplicate port definition with %s", at.Child("ports").Index(j))
			}
		}
	}
	return out
}
