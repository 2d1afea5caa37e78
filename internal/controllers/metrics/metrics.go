// Package metrics holds the metrics of the controllers, under the names, labels and buckets of
// kube-controller-manager, so that dashboards and alerts for it work. They appear at /metrics of the
// API server, which runs in the same process. Before Register nothing is counted and nothing is kept.
// The controllers use it; it must never make decisions.
package metrics

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

func counter(subsystem, name, help string, level metrics.StabilityLevel, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help,
		StabilityLevel: level}, labels)
}

func gauge(subsystem, name, help string, labels ...string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: subsystem, Name: name, Help: help,
		StabilityLevel: metrics.ALPHA}, labels)
}

func histogram(subsystem, name, help string, level metrics.StabilityLevel, buckets []float64,
	labels ...string) *metrics.HistogramVec {
	return metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: subsystem, Name: name, Help: help,
		StabilityLevel: level, Buckets: buckets}, labels)
}

const (
	hpa       = "horizontal_pod_autoscaler_controller"
	job       = "job_controller"
	endpoints = "endpoint_slice_controller"
	nodes     = "node_collector"
	gc        = "pod_gc_collector"
	taints    = "taint_eviction_controller"
	devices   = "device_taint_eviction_controller"
	claims    = "ephemeral_volume_controller"
	binder    = "pv_collector"
)

func skips(subsystem, kind string) *metrics.CounterVec {
	return counter(subsystem, "stale_sync_skips_total",
		"Total number of "+kind+" syncs skipped due to a stale watch cache.", metrics.ALPHA, "group", "resource")
}

// The families.
var (
	DeletionAgeRatio = histogram("replicaset_controller", "sorting_deletion_age_ratio",
		"The ratio of chosen deleted pod's ages to the current youngest pod's age (at the time). Should be <2. "+
			"The intent of this metric is to measure the rough efficacy of the LogarithmicScaleDown feature gate's effect on "+
			"the sorting (and deletion) of pods when a replicaset scales down. This only considers Ready pods when calculating and reporting.",
		metrics.ALPHA, metrics.ExponentialBuckets(0.25, 2, 6))
	ReplicaSetSkips  = skips("replicaset_controller", "ReplicaSet")
	StatefulSetSkips = skips("statefulset_controller", "StatefulSet")
	DaemonSetSkips   = skips("daemonset_controller", "DaemonSet")
	JobSkips         = skips(job, "Job")

	JobSyncSeconds = histogram(job, "job_sync_duration_seconds", "The time it took to sync a job", metrics.STABLE,
		metrics.ExponentialBuckets(0.004, 2, 15), "completion_mode", "result", "action")
	JobSyncs = counter(job, "job_syncs_total", "The number of job syncs", metrics.STABLE, "completion_mode", "result",
		"action")
	JobsFinished = counter(job, "jobs_finished_total", "The number of finished jobs", metrics.STABLE, "completion_mode",
		"result", "reason")
	JobsElsewhere = counter(job, "jobs_by_external_controller_total",
		"The number of Jobs managed by an external controller", metrics.ALPHA, "controller_name")
	JobPodsFinished = counter(job, "job_pods_finished_total", "The number of finished Pods that are fully tracked",
		metrics.STABLE, "completion_mode", "result")
	JobIndexesFinished = counter(job, "job_finished_indexes_total", `The number of finished indexes. Possible values for the
			status label are: "succeeded", "failed". Possible values for the
			backoffLimit label are: "perIndex" and "global"`, "", "status", "backoffLimit")
	JobPodsCreated = counter(job, "job_pods_creation_total",
		`The number of Pods created by the Job controller labelled with a reason for the Pod creation.
This metric also distinguishes between Pods created using different PodReplacementPolicy settings.
Possible values of the "reason" label are:
"new", "recreate_terminating_or_failed", "recreate_failed".
Possible values of the "status" label are:
"succeeded", "failed".`, "", "reason", "status")
	TrackedPodsEnded = counter(job, "terminated_pods_tracking_finalizer_total",
		`The number of terminated pods (phase=Failed|Succeeded)
that have the finalizer batch.kubernetes.io/job-tracking
The event label can be "add" or "delete".`, metrics.BETA, "event")

	CronJobSkew = histogram("cronjob_controller", "job_creation_skew_duration_seconds",
		"Time between when a cronjob is scheduled to be run, and when the corresponding job is created", metrics.STABLE,
		metrics.ExponentialBuckets(1, 2, 10))
	JobDeletionSeconds = histogram("ttl_after_finished_controller", "job_deletion_duration_seconds",
		"The time it took to delete the job since it became eligible for deletion", metrics.ALPHA,
		metrics.ExponentialBuckets(0.1, 2, 14))

	AutoscalerPasses = counter(hpa, "reconciliations_total",
		"Number of reconciliations of HPA controller. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen during a reconciliation, the first one to occur is reported in `error` label.",
		metrics.BETA, "action", "error")
	AutoscalerSeconds = histogram(hpa, "reconciliation_duration_seconds",
		"The time(seconds) that the HPA controller takes to reconcile once. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen during a reconciliation, the first one to occur is reported in `error` label.",
		metrics.BETA, metrics.ExponentialBuckets(0.001, 2, 15), "action", "error")
	Autoscalers = gauge(hpa, "num_horizontal_pod_autoscalers", "Current number of controlled HPA objects.")
	Desired     = gauge(hpa, "desired_replicas", "Current desired replica count for HPA objects.", "namespace", "hpa_name")

	ZoneHealth    = gauge(nodes, "zone_health", "Gauge measuring percentage of healthy nodes per zone.", "zone")
	ZoneSize      = gauge(nodes, "zone_size", "Gauge measuring number of registered Nodes per zones.", "zone")
	ZoneUnhealthy = gauge(nodes, "unhealthy_nodes_in_zone", "Gauge measuring number of not Ready Nodes per zones.",
		"zone")
	Evictions = counter(nodes, "evictions_total",
		"Number of Node evictions that happened since current instance of NodeController started.", metrics.STABLE, "zone")
	NodeSeconds = histogram(nodes, "update_node_health_duration_seconds",
		"Duration in seconds for NodeController to update the health of a single node.", metrics.ALPHA,
		metrics.ExponentialBuckets(0.001, 4, 8))

	PodsRemoved = counter(gc, "force_delete_pods_total",
		"Number of pods that are being forcefully deleted since the Pod GC Controller started.", metrics.ALPHA,
		"namespace", "reason")
	PodsNotRemoved = counter(gc, "force_delete_pod_errors_total",
		"Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started.",
		metrics.ALPHA, "namespace", "reason")
	PodsEvicted = counter(taints, "pod_deletions_total",
		"Total number of Pods deleted by TaintEvictionController since its start.", metrics.ALPHA)
	EvictionSeconds = histogram(taints, "pod_deletion_duration_seconds",
		"Latency, in seconds, between the time when a taint effect has been activated for the Pod and its deletion via TaintEvictionController.",
		metrics.ALPHA, []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240})

	DevicePodsEvicted = counter(devices, "pod_deletions_total",
		"Total number of Pods deleted by DeviceTaintEvictionController since its start.", metrics.ALPHA)
	DeviceEvictionSeconds = histogram(devices, "pod_deletion_duration_seconds",
		"Latency, in seconds, between the time when a device taint effect has been activated and a Pod's deletion "+
			"via DeviceTaintEvictionController.",
		metrics.ALPHA, []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240})

	ForcedDetaches = counter("attach_detach_controller", "attachdetach_controller_forced_detaches",
		"Number of times the A/D Controller performed a forced detach", metrics.ALPHA, "reason")

	AttachedVolumes = gauge("attachdetach_controller", "total_volumes", "Number of volumes in A/D Controller",
		"plugin_name", "state")
	VolumesInUse = gauge("storage_count", "attachable_volumes_in_use", "Measure number of volumes in use", "node",
		"volume_plugin")

	TotalVolumes = gauge(binder, "total_pv_count", "Gauge measuring total number of persistent volumes", "plugin_name",
		"volume_mode")
	BoundVolumes = gauge(binder, "bound_pv_count", "Gauge measuring number of persistent volume currently bound",
		"storage_class")
	UnboundVolumes = gauge(binder, "unbound_pv_count", "Gauge measuring number of persistent volume currently unbound",
		"storage_class")
	BoundClaims = gauge(binder, "bound_pvc_count", "Gauge measuring number of persistent volume claim currently bound",
		"namespace", "storage_class", "volume_attributes_class")
	UnboundClaims = gauge(binder, "unbound_pvc_count",
		"Gauge measuring number of persistent volume claim currently unbound", "namespace", "storage_class",
		"volume_attributes_class")
	LateClasses = counter("", "retroactive_storageclass_total",
		"Total number of retroactive StorageClass assignments to persistent volume claim", metrics.ALPHA)
	NoLateClasses = counter("", "retroactive_storageclass_errors_total",
		"Total number of failed retroactive StorageClass assignments to persistent volume claim", metrics.ALPHA)

	VolumeSeconds = histogram("", "volume_operation_total_seconds",
		"Storage operation end to end duration in seconds", metrics.BETA,
		[]float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}, "plugin_name", "operation_name")
	VolumeErrors = counter("", "volume_operation_errors_total", "Total volume operation errors", metrics.ALPHA,
		"plugin_name", "operation_name")

	VolumeClaims = counter(claims, "create_total", "Number of PersistentVolumeClaim creation requests", metrics.ALPHA)
	NoClaims     = counter(claims, "create_failures_total", "Number of PersistentVolumeClaim creation requests",
		metrics.ALPHA)
	ResourceClaimsMade = counter("dynamic_resource_allocation", "resourceclaim_creates_total",
		"Number of ResourceClaims creation requests, categorized by creation status, admin access and owner",
		metrics.ALPHA, "status", "admin_access", "owner_api_group", "owner_api_kind")
	ResourceClaims = gauge("dynamic_resource_allocation", "resource_claims",
		"Number of ResourceClaims, categorized by allocation status, admin access, and source. "+
			"Source can be 'resource_claim_template' (created from a template), "+
			"'extended_resource' (extended resources), or empty (manually created by a user).",
		"allocated", "admin_access", "source")

	SliceChanges = counter(endpoints, "changes", "Number of EndpointSlice changes", metrics.ALPHA, "operation")
	SliceSyncs   = counter(endpoints, "syncs", "Number of EndpointSlice syncs", metrics.ALPHA, "result")
	SlicesNumber = gauge(endpoints, "num_endpoint_slices", "Number of EndpointSlices")
)

func families() []metrics.Registerable {
	return []metrics.Registerable{DeletionAgeRatio, ReplicaSetSkips, StatefulSetSkips, DaemonSetSkips, JobSkips,
		JobSyncSeconds, JobSyncs, JobsFinished, JobsElsewhere, JobPodsFinished, JobIndexesFinished, JobPodsCreated,
		TrackedPodsEnded, CronJobSkew, JobDeletionSeconds, AutoscalerPasses, AutoscalerSeconds, Autoscalers, Desired,
		ZoneHealth, ZoneSize, ZoneUnhealthy, Evictions, NodeSeconds, PodsRemoved, PodsNotRemoved, PodsEvicted,
		EvictionSeconds, DevicePodsEvicted, DeviceEvictionSeconds, ForcedDetaches, AttachedVolumes, VolumesInUse,
		TotalVolumes, BoundVolumes, UnboundVolumes, BoundClaims, UnboundClaims, LateClasses, NoLateClasses,
		VolumeSeconds, VolumeErrors, VolumeClaims, NoClaims,
		ResourceClaimsMade, ResourceClaims, SliceChanges, SliceSyncs, SlicesNumber}
}

// Register makes the families part of /metrics. Call it before the controllers are made.
func Register() { register() }

var register = sync.OnceFunc(func() {
	for _, f := range families() {
		legacyregistry.MustRegister(f)
	}
	registerQueues()
	readers.Lock()
	defer readers.Unlock()
	readers.wanted = true
})

var readers struct {
	sync.Mutex
	wanted bool // Register was called
	list   []func()
}

// OnRead registers f, which is called before the metrics are read and sets those that are not updated
// by events.
func OnRead(f func()) {
	readers.Lock()
	defer readers.Unlock()
	if readers.wanted {
		readers.list = append(readers.list, f)
	}
}

// Update sets the metrics that are not updated by events.
func Update() {
	readers.Lock()
	defer readers.Unlock()
	for _, f := range readers.list {
		f()
	}
}
