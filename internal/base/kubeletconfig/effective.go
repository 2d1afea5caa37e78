package kubeletconfig

import (
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"

	"carob/internal/base/instance"
)

// Effective is the configuration that /configz shows: the values of files and flags, and
// otherwise the defaults, carob's own where they differ from upstream's (S11.3). hard are the
// default eviction thresholds.
func Effective(in *instance.Instance, hard map[string]string) *Configuration {
	c := &Configuration{}
	if in.Kubelet != nil {
		c = in.Kubelet.DeepCopy()
	}
	c.TypeMeta = metav1.TypeMeta{APIVersion: kubelet.SchemeGroupVersion.String(), Kind: kind}
	c.Address, c.Port = in.AgentListen.Addr().String(), int32(in.AgentListen.Port())
	c.StaticPodPath, c.PodLogsDir = in.PodManifestDir, in.PodLogDir
	c.ClusterDNS = nil
	for _, ip := range in.NameServers {
		c.ClusterDNS = append(c.ClusterDNS, ip.String())
	}
	c.ClusterDomain = in.ClusterDomain
	c.MaxPods, c.PodPidsLimit = int32(in.MaxPods), new(int64(in.Hardening.PodPids))
	c.SeccompDefault = new(!in.Hardening.SeccompUnconfined)
	c.ContainerRuntimeEndpoint = in.RuntimeEndpoint
	if c.ContainerRuntimeEndpoint == "" {
		c.ContainerRuntimeEndpoint = "unix://" + in.SocketCRI
	}
	word(&c.CgroupDriver, in.CgroupDriver)
	if in.ResolvConf != "" {
		c.ResolverConfig = &in.ResolvConf
	}
	pressure(c, &in.Pressure, hard)
	settings(c)
	words(c)
	durations(c)
	return c
}

// pressure fills in the values of flags or their defaults for eviction, images, and shutdown.
func pressure(c *Configuration, p *instance.Pressure, hard map[string]string) {
	c.EvictionHard = parsed(p.Hard, "<")
	if c.EvictionHard == nil || p.MergeHard {
		merged := maps.Clone(hard)
		maps.Copy(merged, c.EvictionHard)
		c.EvictionHard = merged
	}
	c.EvictionSoft, c.EvictionSoftGracePeriod = parsed(p.Soft, "<"), parsed(p.SoftGrace, "=")
	c.EvictionMinimumReclaim = parsed(p.MinReclaim, "=")
	c.EvictionMaxPodGracePeriod = int32(p.MaxPodGrace)
	c.EvictionPressureTransitionPeriod.Duration = p.Transition
	c.ImageMinimumGCAge.Duration = p.ImageMinAge
	set(&c.MergeDefaultEvictionSettings, p.MergeHard)
	if p.ImageHigh != 0 {
		c.ImageGCHighThresholdPercent = new(int32(p.ImageHigh))
	}
	if p.ImageLow != 0 {
		c.ImageGCLowThresholdPercent = new(int32(p.ImageLow))
	}
	set(&c.ImageGCHighThresholdPercent, 92)
	set(&c.ImageGCLowThresholdPercent, *c.ImageGCHighThresholdPercent-2)
	c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration = p.ShutdownGrace, p.ShutdownCritical
}

// parsed is the reverse of list.
func parsed(text, sign string) map[string]string {
	if text == "" {
		return nil
	}
	values := map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(item, sign); ok {
			values[name] = value
		}
	}
	return values
}

func set[T any](to **T, value T) {
	if *to == nil {
		*to = &value
	}
}

func word[T ~string](to *T, value T) {
	if *to == "" {
		*to = value
	}
}

func settings(c *Configuration) {
	set(&c.EnableServer, true)
	set(&c.Authentication.Anonymous.Enabled, false)
	set(&c.Authentication.Webhook.Enabled, true)
	set(&c.EnableDebuggingHandlers, true)
	set(&c.EnableSystemLogHandler, true)
	set(&c.EnableSystemLogQuery, false)
	set(&c.EnableProfilingHandler, false)
	set(&c.EnableDebugFlagsHandler, false)
	set(&c.HealthzPort, 0)
	set(&c.CgroupsPerQOS, true)
	set(&c.CPUCFSQuota, true)
	set(&c.NodeStatusMaxImages, 50)
	set(&c.SerializeImagePulls, false)
	set(&c.MaxParallelImagePulls, 5)
	set(&c.EnableControllerAttachDetach, true)
	set(&c.FailSwapOn, false)
	set(&c.FailCgroupV1, false)
	set(&c.ContainerLogMaxFiles, 5)
	set(&c.LocalStorageCapacityIsolation, true)
	set(&c.RegisterNode, true)
	set(&c.RegistryPullQPS, 0)
	if c.NodeLeaseDurationSeconds == 0 {
		c.NodeLeaseDurationSeconds = 40
	}
	if len(c.EnforceNodeAllocatable) == 0 {
		c.EnforceNodeAllocatable = []string{"pods"}
	}
}

func words(c *Configuration) {
	word(&c.CgroupDriver, "cgroupfs")
	word(&c.Authorization.Mode, kubelet.KubeletAuthorizationModeWebhook)
	word(&c.CPUManagerPolicy, "none")
	word(&c.MemoryManagerPolicy, kubelet.NoneMemoryManagerPolicy)
	word(&c.TopologyManagerPolicy, kubelet.NoneTopologyManagerPolicy)
	word(&c.TopologyManagerScope, kubelet.ContainerTopologyManagerScope)
	word(&c.MemorySwap.SwapBehavior, NoSwap)
	word(&c.ContainerLogMaxSize, "10Mi")
	word(&c.ConfigMapAndSecretChangeDetectionStrategy, kubelet.WatchChangeDetectionStrategy)
	word(&c.ImagePullCredentialsVerificationPolicy, kubelet.NeverVerifyPreloadedImages)
}

func durations(c *Configuration) {
	for to, value := range map[*metav1.Duration]time.Duration{
		&c.NodeStatusReportFrequency:        5 * time.Minute,
		&c.NodeStatusUpdateFrequency:        10 * time.Second,
		&c.ImageMinimumGCAge:                2 * time.Minute,
		&c.EvictionPressureTransitionPeriod: 5 * time.Minute,
	} {
		if to.Duration == 0 {
			to.Duration = value
		}
	}
	set(&c.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 300 * time.Second})
}
