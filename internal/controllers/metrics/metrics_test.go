package metrics

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// want are kube-controller-manager's families, as "NAME TYPE LABELS": those whose controllers carob has.
const want = `
attach_detach_controller_attachdetach_controller_forced_detaches COUNTER reason
attachdetach_controller_total_volumes GAUGE plugin_name state
cronjob_controller_job_creation_skew_duration_seconds HISTOGRAM
daemonset_controller_stale_sync_skips_total COUNTER group resource
device_taint_eviction_controller_pod_deletion_duration_seconds HISTOGRAM
device_taint_eviction_controller_pod_deletions_total COUNTER
dynamic_resource_allocation_resource_claims GAUGE admin_access allocated source
dynamic_resource_allocation_resourceclaim_creates_total COUNTER admin_access owner_api_group owner_api_kind status
endpoint_slice_controller_changes COUNTER operation
endpoint_slice_controller_num_endpoint_slices GAUGE
endpoint_slice_controller_syncs COUNTER result
ephemeral_volume_controller_create_failures_total COUNTER
ephemeral_volume_controller_create_total COUNTER
horizontal_pod_autoscaler_controller_desired_replicas GAUGE hpa_name namespace
horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers GAUGE
horizontal_pod_autoscaler_controller_reconciliation_duration_seconds HISTOGRAM action error
horizontal_pod_autoscaler_controller_reconciliations_total COUNTER action error
job_controller_job_finished_indexes_total COUNTER backoffLimit status
job_controller_job_pods_creation_total COUNTER reason status
job_controller_job_pods_finished_total COUNTER completion_mode result
job_controller_job_sync_duration_seconds HISTOGRAM action completion_mode result
job_controller_job_syncs_total COUNTER action completion_mode result
job_controller_jobs_by_external_controller_total COUNTER controller_name
job_controller_jobs_finished_total COUNTER completion_mode reason result
job_controller_stale_sync_skips_total COUNTER group resource
job_controller_terminated_pods_tracking_finalizer_total COUNTER event
node_collector_evictions_total COUNTER zone
node_collector_unhealthy_nodes_in_zone GAUGE zone
node_collector_update_node_health_duration_seconds HISTOGRAM
node_collector_zone_health GAUGE zone
node_collector_zone_size GAUGE zone
pod_gc_collector_force_delete_pod_errors_total COUNTER namespace reason
pod_gc_collector_force_delete_pods_total COUNTER namespace reason
pv_collector_bound_pv_count GAUGE storage_class
pv_collector_bound_pvc_count GAUGE namespace storage_class volume_attributes_class
pv_collector_total_pv_count GAUGE plugin_name volume_mode
pv_collector_unbound_pv_count GAUGE storage_class
pv_collector_unbound_pvc_count GAUGE namespace storage_class volume_attributes_class
replicaset_controller_sorting_deletion_age_ratio HISTOGRAM
replicaset_controller_stale_sync_skips_total COUNTER group resource
retroactive_storageclass_errors_total COUNTER
retroactive_storageclass_total COUNTER
statefulset_controller_stale_sync_skips_total COUNTER group resource
storage_count_attachable_volumes_in_use GAUGE node volume_plugin
taint_eviction_controller_pod_deletion_duration_seconds HISTOGRAM
taint_eviction_controller_pod_deletions_total COUNTER
ttl_after_finished_controller_job_deletion_duration_seconds HISTOGRAM
volume_operation_errors_total COUNTER operation_name plugin_name
volume_operation_total_seconds HISTOGRAM operation_name plugin_name
workqueue_adds_total COUNTER name
workqueue_depth GAUGE name
workqueue_longest_running_processor_seconds GAUGE name
workqueue_queue_duration_seconds HISTOGRAM name
workqueue_retries_total COUNTER name
workqueue_unfinished_work_seconds GAUGE name
workqueue_work_duration_seconds HISTOGRAM name`

// labels returns values for n labels.
func labels(n int) []string { return strings.Split(strings.Repeat("x,", n)[:max(0, 2*n-1)], ",")[:n] }

// Every family with values is exposed, with upstream's type and labels.
func TestFamilies(t *testing.T) {
	Register()
	Register()
	for _, f := range families() {
		for n := range 5 {
			switch v := f.(type) {
			case *metrics.CounterVec:
				if c, err := v.CounterVec.GetMetricWithLabelValues(labels(n)...); err == nil {
					c.Inc()
				}
			case *metrics.GaugeVec:
				if g, err := v.GaugeVec.GetMetricWithLabelValues(labels(n)...); err == nil {
					g.Set(1)
				}
			case *metrics.HistogramVec:
				if h, err := v.HistogramVec.GetMetricWithLabelValues(labels(n)...); err == nil {
					h.Observe(1)
				}
			}
		}
	}
	q := NewQueue("a-queue")
	if !q.Measured() {
		t.Fatal("not measured after Register")
	}
	q.Added()
	q.Added()
	q.Taken(time.Second)
	q.Done(time.Second)
	q.Later()
	q.Running(3*time.Second, 2*time.Second)
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	values := map[string]float64{}
	for _, f := range all {
		var names []string
		for _, l := range f.Metric[0].Label {
			names = append(names, l.GetName())
		}
		slices.Sort(names)
		line := strings.Join(append([]string{f.GetName(), f.GetType().String()}, names...), " ")
		if strings.Contains("\n"+want, "\n"+f.GetName()+" ") || strings.Contains(f.GetName(), "_controller_") {
			got = append(got, line)
		}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetValue() == "a-queue" {
					values[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() +
						float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
	}
	if text := "\n" + strings.Join(got, "\n"); text != strings.ReplaceAll(want, " \n", "\n") {
		t.Errorf("families:%s\nwant:%s", text, want)
	}
	for name, v := range map[string]float64{"depth": 1, "adds_total": 2, "retries_total": 1, "queue_duration_seconds": 1,
		"work_duration_seconds": 1, "unfinished_work_seconds": 3, "longest_running_processor_seconds": 2} {
		if got := values["workqueue_"+name]; got != v {
			t.Errorf("workqueue_%s: %v, want %v", name, got, v)
		}
	}
}

// The zero value, and values made before Register, record nothing and never panic.
func TestUnregisteredMetricsRecordNothing(*testing.T) {
	var q Queue
	q.Added()
	q.Taken(0)
	q.Done(0)
	q.Later()
	q.Running(0, 0)
}
