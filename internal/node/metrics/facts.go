package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/resources"
	"carob/internal/node/csi"
	"carob/internal/node/pods"
)

// Facts are the values that are read when the metrics are requested.
type Facts struct {
	Node     string             // its name
	CgroupV2 bool               // the unified hierarchy only
	Pods     func() []pods.View // all pods on this node
	Mirrors  func() int         // mirror pods in the API
	Listed   func() time.Time   // when the runtime was last listed; zero: never
	Mounted  func(*corev1.Pod) bool
	// Plugin is upstream's plugin for a volume of a claim or of a CSI driver that is mounted; empty for others.
	Plugin  func(pod *corev1.Pod, volume string) string
	Volumes func() []csi.Stats                        // of claims; nil: unknown
	Claims  func() (byDriver map[string]int, all int) // of devices, in use; nil: the node has no drivers
	// Credentials is the hash of the configuration of credential providers; empty: there is none.
	Credentials string
	Kept        func() resources.MemoryTiers // memory that is kept for pods; nil: none
}

// collector makes the families that show the current state.
type collector struct{ facts Facts }

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// The families. A volume counts as desired for each pod that may run, and as actual when the pod's volumes are mounted.
var (
	nodeName      = gauge("kubelet_node_name", "The node's name. The count is always 1.", "node")
	cgroupVersion = gauge("kubelet_cgroup_version", "cgroup version on the host.")
	runningPods   = gauge("kubelet_running_pods", "Number of pods that have a running pod sandbox.")
	containers    = gauge("kubelet_running_containers", "Number of containers by state.", "container_state")
	desiredPods   = gauge("kubelet_desired_pods",
		"The number of pods the agent is being instructed to run. static is true if the pod is not from the apiserver.",
		"static")
	activePods = gauge("kubelet_active_pods",
		"The number of pods the agent considers active and which are being considered when admitting new pods. "+
			"static is true if the pod is not from the apiserver.", "static")
	mirrorPods = gauge("kubelet_mirror_pods",
		"The number of mirror pods the agent will try to create (one per admitted static pod).")
	ephemeral = gauge("kubelet_managed_ephemeral_containers",
		"Current number of ephemeral containers in pods managed by this agent.")
	resizing         = gauge("kubelet_pod_in_progress_resizes", "Number of in-progress resizes for pods.")
	lastSeen         = gauge("kubelet_pleg_last_seen_seconds", "Timestamp in seconds when the runtime was last listed.")
	credentialConfig = gauge("kubelet_credential_provider_config_info",
		"The configuration of credential providers that is in use, by its hash. The count is always 1.", "hash")
	memoryMin = gauge("kubelet_memory_qos_node_memory_min_bytes",
		"Memory that is kept for Guaranteed pods (memory.min of cgroup v2), in bytes.")
	memoryLow = gauge("kubelet_memory_qos_node_memory_low_bytes",
		"Memory that is kept for Burstable pods as far as possible (memory.low of cgroup v2), in bytes.")
	totalVolumes = gauge("volume_manager_total_volumes", "Number of volumes in Volume Manager", "plugin_name", "state")
)

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodeName, cgroupVersion, runningPods, containers, desiredPods, activePods,
		mirrorPods, ephemeral, resizing, lastSeen, totalVolumes, claimsInUse,
		credentialConfig, memoryMin, memoryLow} {
		out <- d
	}
	for _, d := range volumeFamilies {
		out <- d
	}
}

// tally is what the pods of a node add up to.
type tally struct {
	running, ephemeral, resizing int
	containers                   map[string]int
	desired, active              map[bool]int // by whether they are static
	volumes                      map[[2]string]int
}

func (c collector) count() tally {
	t := tally{containers: map[string]int{"running": 0, "exited": 0, "created": 0}, desired: map[bool]int{},
		active: map[bool]int{}, volumes: map[[2]string]int{}}
	for _, v := range c.facts.Pods() {
		static := resources.IsStatic(v.Pod)
		ended := v.Status.Phase == corev1.PodSucceeded || v.Status.Phase == corev1.PodFailed
		if v.Pod.DeletionTimestamp == nil {
			t.desired[static]++
		}
		if !ended {
			t.active[static]++
			mounted := c.facts.Mounted(v.Pod)
			for i := range v.Pod.Spec.Volumes {
				plugin := c.facts.Plugin(v.Pod, v.Pod.Spec.Volumes[i].Name)
				if plugin == "" {
					plugin = pluginOf(&v.Pod.Spec.Volumes[i])
				}
				t.volumes[[2]string{plugin, "desired_state_of_world"}]++
				if mounted {
					t.volumes[[2]string{plugin, "actual_state_of_world"}]++
				}
			}
		}
		if !ended && v.Life != podlife.Finished && sandbox(&v.Status) {
			t.running++
		}
		t.ephemeral += len(v.Pod.Spec.EphemeralContainers)
		for _, cond := range v.Status.Conditions {
			if cond.Type == corev1.PodResizeInProgress && cond.Status == corev1.ConditionTrue {
				t.resizing++
			}
		}
		for _, list := range [][]corev1.ContainerStatus{v.Status.InitContainerStatuses, v.Status.ContainerStatuses,
			v.Status.EphemeralContainerStatuses} {
			for i := range list {
				switch s := &list[i]; {
				case s.State.Running != nil:
					t.containers["running"]++
				case s.State.Terminated != nil, s.State.Waiting != nil && s.ContainerID != "":
					t.containers["exited"]++
				}
			}
		}
	}
	return t
}

// sandbox reports whether the pod has a ready sandbox.
func sandbox(s *corev1.PodStatus) bool {
	for i := range s.Conditions {
		if s.Conditions[i].Type == corev1.PodReadyToStartContainers {
			return s.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// pluginOf is the name of upstream's volume plugin for a volume; that of a claim is not known from the pod.
func pluginOf(v *corev1.Volume) string {
	switch s := &v.VolumeSource; {
	case s.EmptyDir != nil:
		return "kubernetes.io/empty-dir"
	case s.ConfigMap != nil:
		return "kubernetes.io/configmap"
	case s.Secret != nil:
		return "kubernetes.io/secret"
	case s.Projected != nil:
		return "kubernetes.io/projected"
	case s.DownwardAPI != nil:
		return "kubernetes.io/downward-api"
	case s.HostPath != nil:
		return "kubernetes.io/host-path"
	case s.Image != nil:
		return "kubernetes.io/image"
	case s.CSI != nil:
		return "kubernetes.io/csi:" + s.CSI.Driver
	case s.NFS != nil:
		return "kubernetes.io/nfs"
	case s.ISCSI != nil:
		return "kubernetes.io/iscsi"
	case s.FC != nil:
		return "kubernetes.io/fc"
	default:
		return "unknown"
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	set := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	set(nodeName, 1, c.facts.Node)
	if c.facts.CgroupV2 {
		set(cgroupVersion, 2)
	} else {
		set(cgroupVersion, 1)
	}
	kept := resources.MemoryTiers{}
	if c.facts.Kept != nil {
		kept = c.facts.Kept()
	}
	set(memoryMin, float64(kept.Guaranteed))
	set(memoryLow, float64(kept.Burstable))
	t := c.count()
	set(runningPods, float64(t.running))
	for state, n := range t.containers {
		set(containers, float64(n), state)
	}
	for static, label := range map[bool]string{false: "", true: "true"} {
		set(desiredPods, float64(t.desired[static]), label)
		set(activePods, float64(t.active[static]), label)
	}
	set(mirrorPods, float64(c.facts.Mirrors()))
	set(ephemeral, float64(t.ephemeral))
	set(resizing, float64(t.resizing))
	if at := c.facts.Listed(); !at.IsZero() {
		set(lastSeen, float64(at.UnixNano())/1e9)
	}
	if c.facts.Volumes != nil {
		c.volumes(set)
	}
	if c.facts.Credentials != "" {
		set(credentialConfig, 1, c.facts.Credentials)
	}
	if c.facts.Claims != nil {
		c.claims(set)
	}
	for key, n := range t.volumes {
		set(totalVolumes, float64(n), key[0], key[1])
	}
}
