package kubeletconfig

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/http/httpguts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"
	kubelet "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"
)

// Check returns a warning for each field that has no effect. The error names all fields that are invalid or not
// supported, with upstream's text if upstream refuses them, too (S11.2).
func Check(c *Configuration) (warnings []string, err error) {
	warnings, errs := treat(c)
	errs = append(errs, checkNumbers(c)...)
	errs = append(errs, checkAccess(c)...)
	errs = append(errs, checkReservations(c)...)
	errs = append(errs, checkPods(c)...)
	errs = append(errs, checkShutdown(c)...)
	if err := utilerrors.NewAggregate(errs); err != nil {
		return nil, err
	}
	return warnings, nil
}

func wrong(format string, args ...any) error {
	return fmt.Errorf("invalid configuration: "+format, args...)
}

func checkNumbers(c *Configuration) (errs []error) {
	negative := func(name, flag string, value int64) {
		if value < 0 {
			errs = append(errs, wrong("%s (--%s) %v must not be a negative number", name, flag, value))
		}
	}
	negative("maxPods", "max-pods", int64(c.MaxPods))
	negative("podsPerCore", "pods-per-core", int64(c.PodsPerCore))
	negative("registryBurst", "registry-burst", int64(c.RegistryBurst))
	negative("registryPullQPS", "registry-qps", int64(deref(c.RegistryPullQPS)))
	negative("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", int64(c.EvictionMaxPodGracePeriod))
	port := func(name, flag string, value int32) {
		if value != 0 && utilvalidation.IsValidPortNum(int(value)) != nil {
			errs = append(errs, wrong("%s (--%s) %v must be between 1 and 65535, inclusive", name, flag, value))
		}
	}
	port("port", "port", c.Port)
	port("healthzPort", "healthz-port", deref(c.HealthzPort))
	for _, a := range []struct{ name, text string }{
		{"address", c.Address}, {"healthzBindAddress", c.HealthzBindAddress},
	} {
		if _, err := netip.ParseAddr(a.text); a.text != "" && err != nil {
			errs = append(errs, wrong("%s %q must be an IP address", a.name, a.text))
		}
	}
	percent := func(name, flag string, value *int32) {
		if value != nil && (*value < 0 || *value > 100) {
			errs = append(errs, wrong("%s (--%s) %v must be between 0 and 100, inclusive", name, flag, *value))
		}
	}
	percent("imageGCHighThresholdPercent", "image-gc-high-threshold", c.ImageGCHighThresholdPercent)
	percent("imageGCLowThresholdPercent", "image-gc-low-threshold", c.ImageGCLowThresholdPercent)
	if h, l := c.ImageGCHighThresholdPercent, c.ImageGCLowThresholdPercent; h != nil && l != nil && *l >= *h {
		errs = append(errs, wrong("imageGCLowThresholdPercent (--image-gc-low-threshold) %v must be less than "+
			"imageGCHighThresholdPercent (--image-gc-high-threshold) %v", *l, *h))
	}
	const minimum = 2 * time.Minute // the default of imageMinimumGCAge
	switch most, least := c.ImageMaximumGCAge.Duration, cmp.Or(c.ImageMinimumGCAge.Duration, minimum); {
	case most < 0:
		errs = append(errs, wrong("imageMaximumGCAge %v must not be negative", most))
	case most > 0 && most <= least:
		errs = append(errs, wrong("imageMaximumGCAge %v must be greater than imageMinimumGCAge %v", most, least))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"imageMinimumGCAge", c.ImageMinimumGCAge.Duration},
		{"evictionPressureTransitionPeriod", c.EvictionPressureTransitionPeriod.Duration},
		{"nodeStatusReportFrequency", c.NodeStatusReportFrequency.Duration},
	} {
		if d.value < 0 {
			errs = append(errs, wrong("%s %v must not be negative", d.name, d.value))
		}
	}
	if c.NodeLeaseDurationSeconds < 0 {
		errs = append(errs, wrong("nodeLeaseDurationSeconds must be greater than 0"))
	}
	if n := c.NodeStatusMaxImages; n != nil && *n < -1 {
		errs = append(errs, wrong("nodeStatusMaxImages (--node-status-max-images) %v must be -1 or greater", *n))
	}
	return append(errs, checkPulls(c)...)
}

func checkPulls(c *Configuration) (errs []error) {
	if n := c.MaxParallelImagePulls; n != nil {
		switch {
		case *n < 1:
			errs = append(errs, wrong("maxParallelImagePulls %v must be a positive number", *n))
		case *n > 1 && c.SerializeImagePulls != nil && *c.SerializeImagePulls:
			errs = append(errs, wrong("maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls "+
				"(--serialize-image-pulls) is set to false"))
		}
	}
	if s := c.ContainerLogMaxSize; s != "" {
		if q, err := resource.ParseQuantity(s); err != nil || q.Value() <= 0 {
			errs = append(errs, wrong("containerLogMaxSize %q must be a quantity of bytes above 0", s))
		}
	}
	if n := c.ContainerLogMaxFiles; n != nil && *n <= 1 {
		errs = append(errs, wrong("containerLogMaxFiles must be greater than 1"))
	}
	if p := c.CrashLoopBackOff.MaxContainerRestartPeriod; p != nil &&
		(p.Duration < time.Second || p.Duration > 300*time.Second) {
		errs = append(errs, wrong("CrashLoopBackOff.MaxContainerRestartPeriod (got: %v seconds) must be set between "+
			"1s and 300s", p.Seconds()))
	}
	return errs
}

// checkAccess rejects settings that would give access to clients that carob does not serve.
func checkAccess(c *Configuration) (errs []error) {
	a := &c.Authentication
	if a.X509.ClientCAFile != "" {
		errs = append(errs, wrong("authentication.x509.clientCAFile is not supported, because %s", ownKeys))
	}
	if a.Anonymous.Enabled != nil && *a.Anonymous.Enabled {
		errs = append(errs, wrong("authentication.anonymous.enabled true is not supported, because "+
			"carob rejects requests without authentication"))
	}
	if a.Webhook.Enabled != nil && !*a.Webhook.Enabled {
		errs = append(errs, wrong("authentication.webhook.enabled false is not supported, because "+
			"clients prove who they are by tokens that the API server reviews"))
	}
	if m := c.Authorization.Mode; m != "" && m != kubelet.KubeletAuthorizationModeWebhook {
		errs = append(errs, wrong("authorization.mode %q is not supported, because the API server decides who may "+
			"do what", m))
	}
	if _, err := cliflag.TLSCipherSuites(c.TLSCipherSuites); err != nil {
		errs = append(errs, wrong("tlsCipherSuites: %w", err))
	}
	if _, err := cliflag.TLSVersion(c.TLSMinVersion); err != nil {
		errs = append(errs, wrong("tlsMinVersion: %w", err))
	}
	return errs
}

// reservable are the resources that can be reserved (S11.67).
var reservable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	"pid"}

// many is a number that is too large for a CPU: a set of so many must not be made.
var many = regexp.MustCompile(`\d{6}`)

func checkReservations(c *Configuration) (errs []error) {
	for _, r := range []struct {
		name   string
		values map[string]string
	}{{"systemReserved", c.SystemReserved}, {"kubeReserved", c.KubeReserved}} {
		if _, err := quantities(r.values); err != nil {
			errs = append(errs, wrong("%s: %w", r.name, err))
		}
	}
	if s := c.ReservedSystemCPUs; s != "" {
		if many.MatchString(s) {
			errs = append(errs, wrong("reservedSystemCPUs (--reserved-cpus) %.64q: no machine has such a CPU", s))
		} else if _, err := cpuset.Parse(s); err != nil {
			errs = append(errs, wrong("unable to parse reservedSystemCPUs (--reserved-cpus) %v, error: %w", s, err))
		}
	}
	if h := c.EnableSystemLogHandler; deref(c.EnableSystemLogQuery) && h != nil && !*h {
		errs = append(errs, wrong("enableSystemLogHandler is required for enableSystemLogQuery"))
	}
	if c.CPUManagerReconcilePeriod.Duration < 0 {
		errs = append(errs, wrong("cpuManagerReconcilePeriod %v must not be negative",
			c.CPUManagerReconcilePeriod.Duration))
	}
	for i := range c.ReservedMemory {
		for name, q := range c.ReservedMemory[i].Limits {
			if name != corev1.ResourceMemory && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
				errs = append(errs, wrong("the limit type %q for NUMA node %d is not allowed, only [memory hugepages-<HugePageSize>] "+
					"are accepted", name, c.ReservedMemory[i].NumaNode))
			} else if q.Sign() <= 0 {
				errs = append(errs, wrong("reserved memory may not be zero for NUMA node %d and resource %q",
					c.ReservedMemory[i].NumaNode, name))
			}
		}
	}
	return append(errs, checkEnforcement(c)...)
}

// checkEnforcement checks which cgroups are limited, and their names (S11.69, S11.120).
func checkEnforcement(c *Configuration) (errs []error) {
	const field = "enforceNodeAllocatable (--enforce-node-allocatable)"
	has := func(v string) bool { return slices.Contains(c.EnforceNodeAllocatable, v) }
	for i, v := range c.EnforceNodeAllocatable {
		switch {
		case slices.Contains(c.EnforceNodeAllocatable[:i], v):
			errs = append(errs, wrong("duplicated enforcements %q in %s", v, field))
		case v == enforceNone && len(c.EnforceNodeAllocatable) > 1:
			errs = append(errs, wrong("%s may not contain additional enforcements when %q is specified", field, v))
		case !slices.Contains([]string{enforcePods, enforceNone, enforceSystem, enforceSystemCPU, enforceKubelet,
			enforceKubeletCPU}, v):
			errs = append(errs, wrong("option %q specified for %s. Valid options are %q, %q, %q, %q, %q or %q", v, field,
				enforcePods, enforceSystem, enforceSystemCPU, enforceKubelet, enforceKubeletCPU, enforceNone))
		}
	}
	for _, r := range []struct{ name, flag, cgroup, whole, cpu string }{
		{"systemReservedCgroup", "system-reserved-cgroup", c.SystemReservedCgroup, enforceSystem, enforceSystemCPU},
		{"kubeReservedCgroup", "kube-reserved-cgroup", c.KubeReservedCgroup, enforceKubelet, enforceKubeletCPU},
	} {
		if has(r.whole) && has(r.cpu) {
			errs = append(errs, wrong("both %q and %q cannot be specified together in %s", r.whole, r.cpu, field))
		}
		if r.cgroup == "" && (has(r.whole) || has(r.cpu)) {
			errs = append(errs, wrong("%s (--%s) must be specified when %q or %q included in %s", r.name, r.flag, r.whole,
				r.cpu, field))
		}
		if r.cgroup != "" && !cgroupName(r.cgroup) {
			errs = append(errs, wrong("%s (--%s) %q must be the path of a cgroup other than the root", r.name, r.flag,
				r.cgroup))
		}
	}
	if c.ReservedSystemCPUs != "" && (c.SystemReservedCgroup != "" || c.KubeReservedCgroup != "") {
		errs = append(errs, wrong("can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup "+
			"(--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)"))
	}
	return errs
}

// cgroupName reports whether a text is the path of a cgroup below the root, with or without the slash before it.
func cgroupName(s string) bool {
	s = strings.TrimPrefix(s, "/")
	return s != "" && s != "." && filepath.IsLocal(s) && path.Clean(s) == s && len(s) < 1024 &&
		!strings.ContainsFunc(s, unicode.IsControl)
}

func quantities(values map[string]string) (corev1.ResourceList, error) {
	list := corev1.ResourceList{}
	var errs []error
	for name, text := range values {
		q, err := resource.ParseQuantity(text)
		known := slices.Contains(reservable, corev1.ResourceName(name)) ||
			strings.HasPrefix(name, corev1.ResourceHugePagesPrefix)
		switch {
		case !known:
			errs = append(errs, fmt.Errorf("cannot reserve %q resource", name))
		case err != nil:
			errs = append(errs, fmt.Errorf("failed to parse quantity %q for %q resource: %w", text, name, err))
		case q.Sign() == -1:
			errs = append(errs, fmt.Errorf("resource quantity for %q cannot be negative: %v", name, text))
		default:
			list[corev1.ResourceName(name)] = q
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return list, errors.Join(errs...)
}

// sysctlPattern is a name, or a prefix that ends with an asterisk.
var sysctlPattern = regexp.MustCompile(`^[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*(\.\*|\*)?$`)

// namespaced are the sysctls that the kernel keeps per namespace.
var namespaced = []string{"kernel.shm", "kernel.msg", "fs.mqueue.", "net."}

func checkPods(c *Configuration) (errs []error) {
	for _, s := range c.AllowedUnsafeSysctls {
		name := strings.ReplaceAll(s, "/", ".")
		if len(name) > 253 || !sysctlPattern.MatchString(name) {
			errs = append(errs, wrong("allowedUnsafeSysctls: %q is not a valid sysctl name or pattern", s))
		} else if name != "kernel.sem" &&
			!slices.ContainsFunc(namespaced, func(p string) bool { return strings.HasPrefix(name, p) }) {
			errs = append(errs, wrong("allowedUnsafeSysctls: the sysctls %q are not known to be namespaced", s))
		}
	}
	for i := range c.RegisterWithTaints {
		t := &c.RegisterWithTaints[i]
		if len(utilvalidation.IsQualifiedName(t.Key)) > 0 || len(utilvalidation.IsValidLabelValue(t.Value)) > 0 ||
			!slices.Contains([]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
				corev1.TaintEffectNoExecute}, t.Effect) {
			errs = append(errs, wrong("registerWithTaints: %s is not a valid taint", t.ToString()))
		}
		if t.TimeAdded != nil {
			errs = append(errs, wrong("taint.TimeAdded is not nil"))
		}
	}
	if f := c.MemoryThrottlingFactor; f != nil && !(*f > 0 && *f <= 1) { // NaN is neither
		errs = append(errs, wrong("memoryThrottlingFactor %v must be greater than 0 and less than or equal to 1.0", *f))
	}
	switch c.MemoryReservationPolicy {
	case "", kubelet.NoneMemoryReservationPolicy, kubelet.TieredReservationMemoryReservationPolicy:
	default:
		errs = append(errs, wrong("option %q specified for memoryReservationPolicy. Valid options are %q or %q",
			c.MemoryReservationPolicy, kubelet.NoneMemoryReservationPolicy,
			kubelet.TieredReservationMemoryReservationPolicy))
	}
	switch c.MemorySwap.SwapBehavior {
	case "", NoSwap, LimitedSwap:
	default:
		errs = append(errs, wrong("memorySwap.swapBehavior %q must be one of: \"\", %q or %q", c.MemorySwap.SwapBehavior,
			LimitedSwap, NoSwap))
	}
	if s := c.StaticPodURL; s != "" {
		if u, err := url.Parse(s); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			errs = append(errs, wrong("staticPodURL %q must be an http or https URL", s))
		}
	}
	for name, values := range c.StaticPodURLHeader {
		if !httpguts.ValidHeaderFieldName(name) ||
			slices.ContainsFunc(values, func(v string) bool { return !httpguts.ValidHeaderFieldValue(v) }) {
			errs = append(errs, wrong("staticPodURLHeader: %q is not a valid header", name))
		}
	}
	if d := c.HTTPCheckFrequency.Duration; d < 0 || d > 0 && d < time.Second {
		errs = append(errs, wrong("httpCheckFrequency %v must be at least 1s", d))
	}
	if dir := c.PodLogsDir; strings.IndexFunc(dir, func(r rune) bool { return r > 126 || r < 32 }) >= 0 {
		errs = append(errs, wrong("pod logs path %q mut contains ASCII characters only", dir))
	}
	if s, r := c.ImageServiceEndpoint, c.ContainerRuntimeEndpoint; s != "" && s != r {
		errs = append(errs, wrong("imageServiceEndpoint %q is not supported, because it is not containerRuntimeEndpoint",
			s))
	}
	return errs
}

// TieredReservation is a value of memoryReservationPolicy.
const TieredReservation = kubelet.TieredReservationMemoryReservationPolicy

// Values of memorySwap.swapBehavior.
const (
	NoSwap      = "NoSwap"
	LimitedSwap = "LimitedSwap"
)

func checkShutdown(c *Configuration) (errs []error) {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"shutdownGracePeriod", c.ShutdownGracePeriod.Duration},
		{"shutdownGracePeriodCriticalPods", c.ShutdownGracePeriodCriticalPods.Duration},
	} {
		if d.value < 0 || d.value > 0 && d.value < time.Second {
			errs = append(errs, wrong("%s %v must be either zero or otherwise >= 1 sec", d.name, d.value))
		}
	}
	if c.ShutdownGracePeriodCriticalPods.Duration > c.ShutdownGracePeriod.Duration {
		errs = append(errs, wrong("shutdownGracePeriodCriticalPods %v must be <= shutdownGracePeriod %v",
			c.ShutdownGracePeriodCriticalPods.Duration, c.ShutdownGracePeriod.Duration))
	}
	if len(c.ShutdownGracePeriodByPodPriority) > 0 && c.ShutdownGracePeriod.Duration > 0 {
		errs = append(errs, wrong("Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the "+
			"same time"))
	}
	for _, g := range c.ShutdownGracePeriodByPodPriority {
		if g.ShutdownGracePeriodSeconds < 0 {
			errs = append(errs, wrong("shutdownGracePeriodByPodPriority: %d seconds for priority %d must not be negative",
				g.ShutdownGracePeriodSeconds, g.Priority))
		}
	}
	return errs
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
