package kubeletconfig

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// treatment is how carob treats a field.
type treatment struct {
	honoured bool
	// accepted are the values, as JSON, that a field may have if carob does not honour it
	// otherwise; nil: every value is accepted and has no effect.
	accepted []string
	// why a value has no effect or is not accepted, as a clause that follows "because".
	why string
}

var honoured = treatment{honoured: true}

func withoutEffect(why string) treatment { return treatment{why: why} }

func only(why string, values ...string) treatment { return treatment{accepted: values, why: why} }

// Reasons that several fields share.
const (
	followsEvents = "carob follows changes as they happen"
	inProcess     = "carob calls its API server within the process"
	ownKeys       = "carob makes and renews the certificates of the node itself"
	noIptables    = "carob uses nftables"
	ownCgroups    = "carob manages its own cgroups"
)

// fields has an entry for each field of a KubeletConfiguration (S11.10–S11.87), so that no field is ignored unnoticed.
func fields() map[string]treatment {
	return map[string]treatment{
		"address": honoured, "port": honoured, "tlsCipherSuites": honoured, "tlsMinVersion": honoured,
		"healthzPort": honoured, "healthzBindAddress": honoured,
		"staticPodPath": honoured, "staticPodURL": honoured, "staticPodURLHeader": honoured, "httpCheckFrequency": honoured,
		"podLogsDir": honoured, "containerLogMaxSize": honoured,
		"containerLogMaxFiles": honoured,
		"registryPullQPS":      honoured, "registryBurst": honoured, "serializeImagePulls": honoured,
		"maxParallelImagePulls": honoured,
		"clusterDomain":         honoured, "clusterDNS": honoured, "resolvConf": honoured,
		"nodeStatusReportFrequency": honoured, "nodeLeaseDurationSeconds": honoured, "nodeStatusMaxImages": honoured,
		"providerID": honoured, "registerWithTaints": honoured,
		"imageMinimumGCAge": honoured, "imageGCHighThresholdPercent": honoured, "imageGCLowThresholdPercent": honoured,
		"cgroupDriver": honoured, "containerRuntimeEndpoint": honoured, "imageServiceEndpoint": honoured,
		"maxPods": honoured, "podsPerCore": honoured, "podPidsLimit": honoured,
		"evictionHard": honoured, "evictionSoft": honoured, "evictionSoftGracePeriod": honoured,
		"evictionPressureTransitionPeriod": honoured, "evictionMaxPodGracePeriod": honoured,
		"evictionMinimumReclaim": honoured, "mergeDefaultEvictionSettings": honoured,
		"kernelMemcgNotification": honoured,
		"systemReserved":          honoured, "kubeReserved": honoured, "reservedSystemCPUs": honoured,
		"enforceNodeAllocatable": honoured, "allowedUnsafeSysctls": honoured,
		"failSwapOn": honoured, "memorySwap": honoured, "failCgroupV1": honoured, "singleProcessOOMKill": honoured,
		"shutdownGracePeriod": honoured, "shutdownGracePeriodCriticalPods": honoured,
		"shutdownGracePeriodByPodPriority": honoured,
		"crashLoopBackOff":                 honoured, "seccompDefault": honoured,
		"enableSystemLogHandler": honoured, "enableSystemLogQuery": honoured,
		"cpuManagerPolicy": honoured, "cpuManagerPolicyOptions": honoured, "cpuManagerReconcilePeriod": honoured,
		"memoryManagerPolicy": honoured, "reservedMemory": honoured, "topologyManagerPolicy": honoured,
		"topologyManagerPolicyOptions": honoured, "topologyManagerScope": honoured,

		"enableServer":                           only("logs, exec, and port-forward need the server", "true"),
		"readOnlyPort":                           only("carob rejects requests without authentication", "0"),
		"tlsCertFile":                            only(ownKeys, `""`),
		"authentication":                         honoured, // only partly: see checkAccess
		"authorization":                          honoured,
		"runOnce":                                only("Runonce mode has been deprecated and should not be set", "false"),
		"registerNode":                           only("carob's node always has an API server", "true"),
		"cgroupRoot":                             only(ownCgroups, `""`, `"/"`),
		"cgroupsPerQOS":                          only("the classes of pods share the CPU by their cgroups", "true"),
		"cpuCFSQuota":                            honoured,
		"qosReserved":                            only("its feature gate is alpha", "null", "{}"),
		"userNamespaces":                         only("carob gives each pod 65536 IDs", "null", `{"idsPerPod":65536}`, "{}"),
		"tlsPrivateKeyFile":                      only(ownKeys, `""`),
		"imagePullCredentialsVerificationPolicy": honoured,
		"preloadedImagesVerificationAllowlist":   honoured,
		"enableDebuggingHandlers":                only("logs, exec, and port-forward need them", "true"),
		"cpuCFSQuotaPeriod":                      only("its feature gate is alpha", `"100ms"`),
		"imageMaximumGCAge":                      honoured,
		"enableControllerAttachDetach":           only("the attach-detach controller attaches volumes", "true"),
		"systemReservedCgroup":                   honoured,
		"kubeReservedCgroup":                     honoured,
		"defaultPodSysctls":                      only("its feature gate is alpha", "null", "{}"),
		"memoryThrottlingFactor":                 honoured,
		"memoryReservationPolicy":                honoured,
		"localStorageCapacityIsolation":          only("limits of ephemeral storage are always enforced", "true"),

		"syncFrequency": withoutEffect(followsEvents), "fileCheckFrequency": withoutEffect(followsEvents),
		"nodeStatusUpdateFrequency":                 withoutEffect(followsEvents),
		"configMapAndSecretChangeDetectionStrategy": withoutEffect(followsEvents),
		"containerLogMaxWorkers":                    withoutEffect(followsEvents),
		"containerLogMonitorInterval":               withoutEffect(followsEvents),
		"kubeAPIQPS":                                withoutEffect(inProcess), "kubeAPIBurst": withoutEffect(inProcess),
		"contentType": withoutEffect(inProcess), "eventRecordQPS": withoutEffect(inProcess),
		"eventBurst":         withoutEffect(inProcess),
		"rotateCertificates": withoutEffect(ownKeys), "serverTLSBootstrap": withoutEffect(ownKeys),
		"tlsCurvePreferences":    withoutEffect("Go chooses the key exchange"),
		"oomScoreAdj":            withoutEffect("the whole cluster is one process"),
		"kubeletCgroups":         withoutEffect(ownCgroups),
		"systemCgroups":          withoutEffect(ownCgroups),
		"hairpinMode":            withoutEffect("the pod network decides it"),
		"podCIDR":                withoutEffect("--pod-cidr sets it"),
		"maxOpenFiles":           withoutEffect("carob raises the limit to what the host allows"),
		"makeIPTablesUtilChains": withoutEffect(noIptables), "iptablesMasqueradeBit": withoutEffect(noIptables),
		"iptablesDropBit":        withoutEffect(noIptables),
		"featureGates":           withoutEffect("each feature of carob has upstream's default"),
		"volumePluginDir":        withoutEffect("FlexVolume is deprecated and not supported"),
		"volumeStatsAggPeriod":   withoutEffect("volumes are measured on request"),
		"protectKernelDefaults":  withoutEffect("carob changes no kernel default for the node agent"),
		"logging":                withoutEffect("--log-level sets it"),
		"tracing":                withoutEffect("carob exports no traces of the node agent"),
		"enableProfilingHandler": withoutEffect("--profiling sets it"), "enableContentionProfiling": withoutEffect("--profiling sets it"),
		"enableDebugFlagsHandler":        withoutEffect("--log-level sets it"),
		"streamingConnectionIdleTimeout": withoutEffect("connections end with their clients"),
		"runtimeRequestTimeout":          withoutEffect("each call to the runtime has its own limit"),
		"showHiddenMetricsForVersion":    withoutEffect("no metric is hidden"),
	}
}

// treat checks each field that is set. It returns a warning for those without effect, and an error for those that carob
// must not ignore.
func treat(c *Configuration) (warnings []string, errs []error) {
	all := fields()
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		t, known := all[name]
		if !known || t.honoured || v.Field(i).IsZero() {
			continue
		}
		text, err := json.Marshal(v.Field(i).Interface())
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("invalid configuration: %s: %w", name, err))
		case t.accepted == nil:
			if !emptyValue(text) {
				warnings = append(warnings, fmt.Sprintf("%s has no effect, because %s", name, t.why))
			}
		case !slices.Contains(t.accepted, string(text)):
			errs = append(errs, fmt.Errorf("invalid configuration: %s %s is not supported, because %s", name, text, t.why))
		}
	}
	slices.Sort(warnings)
	return warnings, errs
}

func emptyValue(text []byte) bool {
	return slices.Contains([]string{"null", "{}", "[]", `""`, "0", "false", `"0s"`}, string(text))
}
