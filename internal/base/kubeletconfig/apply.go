package kubeletconfig

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"carob/internal/base/instance"
)

// Apply sets the flags for which the configuration has a value, unless the user gave them on the
// command line, which takes precedence (S11.1). Settings without a flag are read from
// Flags.Kubelet.
func Apply(c *Configuration, f *instance.Flags, given func(flag string) bool) {
	f.Kubelet = c
	text := func(flag, value string, to *string) {
		if value != "" && !given(flag) {
			*to = value
		}
	}
	number := func(flag string, value int, to *int) {
		if value != 0 && !given(flag) {
			*to = value
		}
	}
	text("pod-manifest-dir", c.StaticPodPath, &f.PodManifestDir)
	text("cluster-dns", strings.Join(c.ClusterDNS, ","), &f.ClusterDNS)
	text("cluster-domain", c.ClusterDomain, &f.ClusterDomain)
	text("resolv-conf", deref(c.ResolverConfig), &f.ResolvConf)
	text("cgroup-driver", c.CgroupDriver, &f.CgroupDriver)
	text("runtime-endpoint", c.ContainerRuntimeEndpoint, &f.RuntimeEndpoint)
	number("max-pods", int(c.MaxPods), &f.MaxPods)
	number("pod-max-pids", int(max(deref(c.PodPidsLimit), -1)), &f.Hardening.PodPids)
	if c.SeccompDefault != nil && !given("seccomp-default") {
		f.Hardening.SeccompUnconfined = !*c.SeccompDefault
	}
	p := &f.Pressure
	text("eviction-hard", list(c.EvictionHard, "<"), &p.Hard)
	if c.MergeDefaultEvictionSettings != nil && !given("eviction-hard") {
		p.MergeHard = *c.MergeDefaultEvictionSettings
	}
	text("eviction-soft", list(c.EvictionSoft, "<"), &p.Soft)
	text("eviction-soft-grace-period", list(c.EvictionSoftGracePeriod, "="), &p.SoftGrace)
	text("eviction-minimum-reclaim", list(c.EvictionMinimumReclaim, "="), &p.MinReclaim)
	number("eviction-max-pod-grace-period", int(c.EvictionMaxPodGracePeriod), &p.MaxPodGrace)
	number("image-gc-high-threshold", int(deref(c.ImageGCHighThresholdPercent)), &p.ImageHigh)
	number("image-gc-low-threshold", int(deref(c.ImageGCLowThresholdPercent)), &p.ImageLow)
	if d := c.EvictionPressureTransitionPeriod.Duration; d != 0 && !given("eviction-pressure-transition-period") {
		p.Transition = d
	}
	if d := c.ImageMinimumGCAge.Duration; d != 0 && !given("minimum-image-ttl-duration") {
		p.ImageMinAge = d
	}
	if !given("shutdown-grace-period") && c.ShutdownGracePeriod.Duration != 0 {
		p.ShutdownGrace = c.ShutdownGracePeriod.Duration
		if !given("shutdown-grace-period-critical-pods") {
			p.ShutdownCritical = c.ShutdownGracePeriodCriticalPods.Duration
		}
	}
}

// list writes values as a flag does, in a fixed order.
func list(values map[string]string, sign string) string {
	var items []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		items = append(items, name+sign+values[name])
	}
	return strings.Join(items, ",")
}

// Reserved is what the configuration reserves of each resource, for the system and for the node agent together; the
// CPUs of reservedSystemCPUs replace both reservations of CPU (S11.68). The configuration must have passed Check; nil
// reserves nothing.
func Reserved(c *Configuration) corev1.ResourceList {
	total := corev1.ResourceList{}
	if c == nil {
		return total
	}
	for _, values := range []map[string]string{c.SystemReserved, c.KubeReserved} {
		some, err := quantities(values)
		if err != nil {
			continue // Check has refused it
		}
		for name, q := range some {
			sum := total[name]
			sum.Add(q)
			total[name] = sum
		}
	}
	if c.ReservedSystemCPUs != "" && !many.MatchString(c.ReservedSystemCPUs) {
		if set, err := cpuset.Parse(c.ReservedSystemCPUs); err == nil {
			total[corev1.ResourceCPU] = *resource.NewQuantity(int64(set.Size()), resource.DecimalSI)
		}
	}
	return total
}

// MaxPods is how many pods a node with so many CPUs may run: most, or fewer with podsPerCore
// (S11.52).
func MaxPods(c *Configuration, most, cpus int) int {
	if c == nil || c.PodsPerCore <= 0 {
		return most
	}
	return min(most, int(c.PodsPerCore)*cpus)
}

// MaxPulls is how many images are pulled at one time; 0: as many as carob does without a configuration (S11.27).
func MaxPulls(c *Configuration) int {
	switch {
	case c == nil:
		return 0
	case c.MaxParallelImagePulls != nil:
		return int(*c.MaxParallelImagePulls)
	case c.SerializeImagePulls != nil && *c.SerializeImagePulls:
		return 1
	}
	return 0
}

// LogSize is the size in bytes at which the log of a container is rotated; 0: the default.
func LogSize(c *Configuration) int64 {
	if c == nil || c.ContainerLogMaxSize == "" {
		return 0
	}
	q, err := resource.ParseQuantity(c.ContainerLogMaxSize)
	if err != nil {
		return 0 // Check has refused it
	}
	return q.Value()
}

// EnforcesPods reports whether the cgroup of all pods is limited to the unreserved resources (S11.120, S11.121).
func EnforcesPods(c *Configuration) bool {
	return c == nil || len(c.EnforceNodeAllocatable) == 0 || slices.Contains(c.EnforceNodeAllocatable, enforcePods)
}

// Values of enforceNodeAllocatable (S11.120).
const (
	enforcePods       = "pods"
	enforceNone       = "none"
	enforceSystem     = "system-reserved"
	enforceSystemCPU  = "system-reserved-compressible"
	enforceKubelet    = "kube-reserved"
	enforceKubeletCPU = "kube-reserved-compressible"
)

// Reservation is a cgroup that the administrator has made, and what is reserved for it.
type Reservation struct {
	For     string // "system" or "kube"
	Cgroup  string
	Limits  corev1.ResourceList
	CPUOnly bool // only the CPU weight is set
}

// EnforcedReservations are the reservations whose cgroups are limited to them (S11.124). The configuration must have
// passed Check.
func EnforcedReservations(c *Configuration) (list []Reservation) {
	add := func(name, cgroup string, values map[string]string, whole, cpu string) {
		if !slices.Contains(c.EnforceNodeAllocatable, whole) && !slices.Contains(c.EnforceNodeAllocatable, cpu) {
			return
		}
		limits, err := quantities(values)
		if err != nil {
			return // Check has refused it
		}
		list = append(list, Reservation{For: name, Cgroup: cgroup, Limits: limits,
			CPUOnly: slices.Contains(c.EnforceNodeAllocatable, cpu)})
	}
	add("system", c.SystemReservedCgroup, c.SystemReserved, enforceSystem, enforceSystemCPU)
	add("kube", c.KubeReservedCgroup, c.KubeReserved, enforceKubelet, enforceKubeletCPU)
	return list
}
