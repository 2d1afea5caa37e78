package pods

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"carob/internal/core/podlife"
	"carob/internal/kinds/rules"
	"carob/internal/kinds/volumes"
)

// PodWarnings returns warnings about a new pod that is valid but probably not intended. Updates
// return none, because most are made by programs.
func PodWarnings(p *corev1.Pod) []string {
	var out []string
	// Names of mirror and bare pods become host names; a name with dots is cut at the first (L1.7).
	if msgs := validation.IsDNS1123Label(p.Name); p.Name != "" && len(msgs) > 0 {
		out = append(out,
			fmt.Sprintf(
				"metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
	}
	return append(out, podSpecWarnings(&p.Spec, &p.ObjectMeta, nil)...)
}

// PodStatusWarnings returns warnings about the addresses that an agent reports.
func PodStatusWarnings(p *corev1.Pod) []string {
	var out []string
	at := field.NewPath("status")
	for i, ip := range p.Status.PodIPs {
		out = append(out, validation.GetWarningsForIP(at.Child("podIPs").Index(i).Child("ip"), ip.IP)...)
	}
	for i, ip := range p.Status.HostIPs {
		out = append(out, validation.GetWarningsForIP(at.Child("hostIPs").Index(i).Child("ip"), ip.IP)...)
	}
	return out
}

// TemplateWarnings returns the warnings about a workload's pod template.
func TemplateWarnings(t *corev1.PodTemplateSpec, at *field.Path) []string {
	return podSpecWarnings(&t.Spec, &t.ObjectMeta, at)
}

// goneAnnotations no longer have an effect.
var goneAnnotations = [...][2]string{
	{"scheduler.alpha.kubernetes.io/critical-pod",
		`non-functional in v1.16+; use the "priorityClassName" field instead`},
	{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
}

// podSpecWarnings returns the warnings about a pod, or about the template at a path.
func podSpecWarnings(s *corev1.PodSpec, m *metav1.ObjectMeta, at *field.Path) []string {
	var out rules.Warnings
	spec, annotations := at.Child("spec"), at.Child("metadata", "annotations")
	if _, _, err := podlife.DrainTimeout(m.Annotations); err != nil {
		out.Add(annotations.Key(podlife.DrainAnnotation), "the annotation has no effect: %v", err)
	}
	for _, key := range slices.Sorted(maps.Keys(s.NodeSelector)) {
		if old, ok := rules.OldNodeLabels[key]; ok {
			out.Add(spec.Child("nodeSelector").Key(key), "%s", old)
		}
	}
	if a := s.Affinity; a != nil && a.NodeAffinity != nil {
		at := spec.Child("affinity", "nodeAffinity")
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for i := range required.NodeSelectorTerms {
				out = append(out,
					rules.TermWarnings(&required.NodeSelectorTerms[i], false,
						at.Child(requiredField, "nodeSelectorTerms").Index(i))...)
			}
		}
		for i := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			p := &a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i]
			out = append(out, rules.TermWarnings(&p.Preference, true,
				at.Child(preferredField).Index(i).Child("preference"))...)
		}
	}
	for i := range s.TopologySpreadConstraints {
		c, at := &s.TopologySpreadConstraints[i], spec.Child("topologySpreadConstraints").Index(i)
		if old, ok := rules.OldNodeLabels[c.TopologyKey]; ok {
			out.Add(at.Child("topologyKey"), "%s is %s", c.TopologyKey, old)
		}
		if c.LabelSelector == nil {
			out.Add(at.Child("labelSelector"), nothingSelected)
		}
	}
	for _, a := range goneAnnotations {
		if _, ok := m.Annotations[a[0]]; ok {
			out.Add(annotations.Key(a[0]), "%s", a[1])
		}
	}
	for i := range s.Volumes {
		v, at := &s.Volumes[i], spec.Child("volumes").Index(i)
		for _, gone := range []struct {
			used       bool
			name, text string
		}{
			{v.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
			{v.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"},
			{v.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
			{v.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+"},
			{v.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
			{v.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
			{v.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
		} {
			if gone.used {
				out.Add(at.Child(gone.name), "%s", gone.text)
			}
		}
		if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			out = append(out, volumes.ClaimSpecWarnings(&v.Ephemeral.VolumeClaimTemplate.Spec,
				at.Child("ephemeral", "volumeClaimTemplate", "spec"))...)
		}
	}
	for i := range s.Volumes {
		if len(out) < mostWarnings {
			out = append(out, overlaps(&s.Volumes[i])...)
		}
	}
	ips, secrets := sets.New[string](), sets.New[string]()
	for i, a := range s.HostAliases {
		if ips.Has(a.IP) {
			out.Add(spec.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", a.IP)
		}
		ips.Insert(a.IP)
	}
	for i, r := range s.ImagePullSecrets {
		if secrets.Has(r.Name) {
			out.Add(spec.Child("imagePullSecrets").Index(i).Child("name"), "duplicate name %q", r.Name)
		}
		secrets.Insert(r.Name)
	}
	for i, r := range s.ImagePullSecrets {
		if r.Name == "" {
			out.Add(spec.Child("imagePullSecrets").Index(i).Child("name"), "invalid empty name %q", r.Name)
		}
	}
	out.Bytes(s.Overhead, spec.Child("overhead"), corev1.ResourceMemory, corev1.ResourceEphemeralStorage)
	out = append(out, profileWarnings(s, m, at)...)
	out = append(out, portWarnings(s, spec)...)
	if t := s.TerminationGracePeriodSeconds; t != nil && *t < 0 {
		out.Add(spec.Child("terminationGracePeriodSeconds"),
			"must be >= 0; negative values are invalid and will be treated as 1")
	}
	if a := s.Affinity; a != nil {
		if p := a.PodAffinity; p != nil {
			out = append(out, affinityWarnings(p.RequiredDuringSchedulingIgnoredDuringExecution,
				p.PreferredDuringSchedulingIgnoredDuringExecution, spec.Child("affinity", "podAffinity"))...)
		}
		if p := a.PodAntiAffinity; p != nil {
			out = append(out, affinityWarnings(p.RequiredDuringSchedulingIgnoredDuringExecution,
				p.PreferredDuringSchedulingIgnoredDuringExecution, spec.Child("affinity", "podAntiAffinity"))...)
		}
	}
	if d := s.DNSConfig; d != nil {
		for i, ip := range d.Nameservers {
			out = append(out, validation.GetWarningsForIP(spec.Child("dnsConfig", "nameservers").Index(i), ip)...)
		}
	}
	for i, a := range s.HostAliases {
		out = append(out, validation.GetWarningsForIP(spec.Child("hostAliases").Index(i).Child("ip"), a.IP)...)
	}
	return out
}

// containersOf returns all containers of a pod with their paths: init, regular, ephemeral.
func containersOf(s *corev1.PodSpec, spec *field.Path) iter.Seq2[*corev1.Container, *field.Path] {
	return func(yield func(*corev1.Container, *field.Path) bool) {
		for i := range s.InitContainers {
			if !yield(&s.InitContainers[i], spec.Child("initContainers").Index(i)) {
				return
			}
		}
		for i := range s.Containers {
			if !yield(&s.Containers[i], spec.Child("containers").Index(i)) {
				return
			}
		}
		for i := range s.EphemeralContainers {
			if !yield((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon),
				spec.Child("ephemeralContainers").Index(i)) {
				return
			}
		}
	}
}

// profileWarnings returns warnings about annotations that fields have replaced, and about single
// containers.
func profileWarnings(s *corev1.PodSpec, m *metav1.ObjectMeta, at *field.Path) []string {
	const seccomp = `non-functional in v1.27+; use the "seccompProfile" field instead`
	var out rules.Warnings
	annotations := at.Child("metadata", "annotations")
	var ofPod *corev1.AppArmorProfile
	if s.SecurityContext != nil {
		ofPod = s.SecurityContext.AppArmorProfile
	}
	if _, ok := m.Annotations[corev1.SeccompPodAnnotationKey]; ok &&
		(s.SecurityContext == nil || s.SecurityContext.SeccompProfile == nil) {
		out.Add(annotations.Key(corev1.SeccompPodAnnotationKey), seccomp)
	}
	for c, path := range containersOf(s, at.Child("spec")) {
		key := corev1.SeccompContainerAnnotationKeyPrefix + c.Name
		if _, ok := m.Annotations[key]; ok && (c.SecurityContext == nil || c.SecurityContext.SeccompProfile == nil) {
			out.Add(annotations.Key(key), seccomp)
		}
		// The strategy reads the annotation of a pod, and warns about it, at creation.
		key = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		if text, ok := m.Annotations[key]; ok && at != nil &&
			(c.SecurityContext == nil || c.SecurityContext.AppArmorProfile == nil) &&
			(ofPod == nil || !apiequality.Semantic.DeepEqual(ofPod, ParseAppArmorAnnotation(text))) {
			out.Add(annotations.Key(key), `deprecated since v1.30; use the "appArmorProfile" field instead`)
		}
		out = append(out, containerWarnings(c, path)...)
	}
	return out
}

// Limits of warnings about pairs in long lists: a pod of a few megabytes may have 10,000,000,000 pairs. Clients get
// only the first few kilobytes of all warnings.
const (
	mostCompared = 200
	mostWarnings = 100
)

// portWarnings returns warnings about empty, duplicate, or ambiguous ports.
func portWarnings(s *corev1.PodSpec, spec *field.Path) []string {
	type placed struct {
		*corev1.ContainerPort
		at *field.Path
	}
	type number struct {
		port     int32
		protocol corev1.Protocol
	}
	var out rules.Warnings
	var all []placed
	same := map[number][]placed{}
	for c, path := range containersOf(s, spec) {
		for i := range c.Ports {
			p := placed{&c.Ports[i], path.Child("ports").Index(i)}
			if p.HostIP != "" && p.HostPort == 0 {
				out.Add(p.at,
					"hostIP set without hostPort: {Name:%s HostPort:%d ContainerPort:%d Protocol:%s HostIP:%s}", p.Name,
					p.HostPort, p.ContainerPort.ContainerPort, p.Protocol, p.HostIP)
			}
			all = append(all, p)
			n := number{p.ContainerPort.ContainerPort, p.Protocol}
			if len(same[n]) == mostCompared || len(out) > mostWarnings {
				continue
			}
			for _, o := range same[n] {
				switch {
				case o.HostIP == p.HostIP && o.HostPort == p.HostPort:
					out.Add(p.at, "duplicate port definition with %s", o.at)
				case o.HostPort == 0 || p.HostPort == 0:
					out.Add(p.at, "overlapping port definition with %s", o.at)
				case o.HostPort == p.HostPort && (o.HostIP == "") != (p.HostIP == ""):
					out.Add(p.at, "dangerously ambiguous port definition with %s", o.at)
				}
			}
			same[n] = append(same[n], p)
		}
	}
	named := map[string]*field.Path{}
	for _, p := range all {
		switch first, twice := named[p.Name]; {
		case p.Name == "":
		case twice:
			out.Add(p.at, "duplicate port name %q with %s, services and probes that select ports by name will use %s",
				p.Name, first, first)
		default:
			named[p.Name] = p.at
		}
	}
	return out
}

const nothingSelected = "a null labelSelector results in matching no pod"

func affinityWarnings(terms []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm,
	at *field.Path) []string {
	var out []string
	for i := range terms {
		if terms[i].LabelSelector == nil {
			out = append(out, at.Child(requiredField).Index(i).Child("labelSelector").String()+": "+nothingSelected)
		}
	}
	for i := range preferred {
		if preferred[i].PodAffinityTerm.LabelSelector == nil {
			out = append(out, at.Child(preferredField).Index(i).Child("podAffinityTerm", "labelSelector").String()+": "+
				nothingSelected)
		}
	}
	return out
}

// placed is a file of a volume, and its source.
type placed struct{ path, source string }

func (p placed) String() string {
	if p.source == "" {
		return fmt.Sprintf("%q", p.path)
	}
	return fmt.Sprintf("%q (%s)", p.path, p.source)
}

// overlaps returns the files of one volume that overwrite each other.
func overlaps(v *corev1.Volume) []string {
	var out []string
	var all []placed
	add := func(volume, path, source string) {
		p := placed{strings.TrimRight(path, "/"), source}
		if len(all) == mostCompared || len(out) > mostWarnings {
			return
		}
		for _, o := range all {
			if p.path != "" && o.path != "" &&
				(strings.HasPrefix(o.path+"/", p.path+"/") || strings.HasPrefix(p.path+"/", o.path+"/")) {
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

func containerWarnings(c *corev1.Container, at *field.Path) []string {
	var out rules.Warnings
	for _, name := range [...]corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		out.Bytes(c.Resources.Limits, at.Child("resources", "limits"), name)
		out.Bytes(c.Resources.Requests, at.Child("resources", "requests"), name)
	}
	seen := make(map[string]struct{}, len(c.Env))
	for i, e := range c.Env {
		// A definition that extends the previous one does not hide it.
		reference := "$(" + e.Name + ")"
		if _, twice := seen[e.Name]; twice &&
			(e.ValueFrom != nil || e.Value == reference || !strings.Contains(e.Value, reference)) {
			out.Add(at.Child("env").Index(i), "hides previous definition of %q, which may be dropped when using apply",
				e.Name)
		}
		seen[e.Name] = struct{}{}
	}
	return out
}
