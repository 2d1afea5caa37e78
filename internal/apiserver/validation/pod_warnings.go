package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
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
		at := at.Child("imagePullSecrets").Index(i).Child("name")
		if r.Name == "" {
			say(at, "invalid empty name %q", r.Name)
		}
		if slices.Contains(s.ImagePullSecrets[:i], r) {
			say(at, "duplicate name %q", r.Name)
		}
	}
	for i := range s.TopologySpreadConstraints {
		if s.TopologySpreadConstraints[i].LabelSelector == nil {
			say(at.Child("topologySpreadConstraints").Index(i).Child("labelSelector"), nothingSelected)
		}
	}
	if a := s.Affinity; a != nil {
		if p := a.PodAffinity; p != nil {
			out = append(out, affinityWarnings(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("affinity", "podAffinity"))...)
		}
		if p := a.PodAntiAffinity; p != nil {
			out = append(out, affinityWarnings(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("affinity", "podAntiAffinity"))...)
		}
	}
	for i := range s.Volumes {
		switch v, at := &s.Volumes[i], at.Child("volumes").Index(i); {
		case v.GitRepo != nil:
			say(at.Child("gitRepo"), "deprecated in v1.11, and disabled by default in v1.33+")
		case v.Glusterfs != nil:
			say(at.Child("glusterfs"), "deprecated in v1.25, this feature will be completely removed in v1.26")
		case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
			out = append(out, claimSpecWarnings(&v.Ephemeral.VolumeClaimTemplate.Spec, at.Child("ephemeral", "volumeClaimTemplate", "spec"))...)
		case v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.MilliValue()%1000 != 0:
			say(at.Child("emptyDir", "sizeLimit"), "fractional byte value %q is invalid, must be an integer", v.EmptyDir.SizeLimit.String())
		}
	}
	for i := range s.Volumes {
		out = append(out, overlaps(&s.Volumes[i])...)
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

const nothingSelected = "a null labelSelector results in matching no pod"

func affinityWarnings(terms []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, at *field.Path) []string {
	var out []string
	for i := range terms {
		if terms[i].LabelSelector == nil {
			out = append(out, at.Child(requiredField).Index(i).Child("labelSelector").String()+": "+nothingSelected)
		}
	}
	for i := range preferred {
		if preferred[i].PodAffinityTerm.LabelSelector == nil {
			out = append(out, at.Child(preferredField).Index(i).Child("podAffinityTerm", "labelSelector").String()+": "+nothingSelected)
		}
	}
	return out
}

// placed is a file of a volume, and what it is from.
type placed struct{ path, source string }

func (p placed) String() string {
	if p.source == "" {
		return fmt.Sprintf("%q", p.path)
	}
	return fmt.Sprintf("%q (%s)", p.path, p.source)
}

// overlaps are the files of one volume that hide each other.
func overlaps(v *corev1.Volume) []string {
	var out []string
	var all []placed
	add := func(volume, path, source string) {
		p := placed{strings.TrimRight(path, "/"), source}
		for _, o := range all {
			if p.path != "" && o.path != "" && (strings.HasPrefix(o.path+"/", p.path+"/") || strings.HasPrefix(p.path+"/", o.path+"/")) {
				out = append(out, fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", v.Name, volume, p, o))
			}
		}
		all = append(all, p)
	}
	files := func(volume, source string, items []corev1.KeyToPath) {
		for _, item := range items {
			add(volume, item.Path, source)
		}
	}
	switch {
	case v.ConfigMap != nil:
		files(fmt.Sprintf("ConfigMap %q", v.ConfigMap.Name), "", v.ConfigMap.Items)
	case v.Secret != nil:
		files(fmt.Sprintf("Secret %q", v.Secret.SecretName), "", v.Secret.Items)
	case v.DownwardAPI != nil:
		for _, item := range v.DownwardAPI.Items {
			add("DownwardAPI", item.Path, "")
		}
	case v.Projected != nil:
		const volume = "Projected"
		for _, s := range v.Projected.Sources {
			switch {
			case s == corev1.VolumeProjection{}:
				out = append(out, fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
			case s.ConfigMap != nil:
				files(volume, fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name), s.ConfigMap.Items)
			case s.Secret != nil:
				files(volume, fmt.Sprintf("Secret %q", s.Secret.Name), s.Secret.Items)
			case s.DownwardAPI != nil:
				for _, item := range s.DownwardAPI.Items {
					add(volume, item.Path, "DownwardAPI")
				}
			case s.ServiceAccountToken != nil:
				add(volume, s.ServiceAccountToken.Path, "ServiceAccountToken")
			case s.ClusterTrustBundle != nil:
				name := s.ClusterTrustBundle.SignerName
				if s.ClusterTrustBundle.Name != nil {
					name = s.ClusterTrustBundle.Name
				}
				add(volume, s.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", ptr.Deref(name, "")))
			case s.PodCertificate != nil:
				add(volume, s.PodCertificate.CertificateChainPath, "PodCertificate chain")
				add(volume, s.PodCertificate.KeyPath, "PodCertificate key")
				add(volume, s.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle")
			}
		}
	}
	return out
}

// claimSpecWarnings are hints about a claim of a volume.
func claimSpecWarnings(s *corev1.PersistentVolumeClaimSpec, at *field.Path) []string {
	var out []string
	if q := s.Resources.Requests[corev1.ResourceStorage]; q.MilliValue()%1000 != 0 {
		out = append(out, fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer", at.Child("resources", "requests").Key(string(corev1.ResourceStorage)), q.String()))
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
