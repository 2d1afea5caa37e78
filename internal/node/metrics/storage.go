package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"carob/internal/node/csi"
)

// storage are the families of work on volumes (S4.L).
type storage struct {
	operations, calls *prometheus.HistogramVec

	reconstructed, unreconstructed, cleaned, uncleaned prometheus.Counter

	badLabels, severalLabels *prometheus.GaugeVec // by access mode
	conflicts, labelled      *prometheus.GaugeVec // by plugin and access mode
}

// Buckets of upstream's families, in seconds.
var (
	storageBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	csiBuckets     = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
)

func newStorage(r prometheus.Registerer) storage {
	s := storage{
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "storage_operation_duration_seconds",
			Help: "Storage operation duration", Buckets: storageBuckets},
			[]string{"volume_plugin", "operation_name", "status", "migrated"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "csi_operations_seconds",
			Help: "Container Storage Interface operation duration with gRPC error code status total", Buckets: csiBuckets},
			[]string{"driver_name", "method_name", "grpc_status_code", "migrated"}),
	}
	counted := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	s.reconstructed = counted("reconstruct_volume_operations_total", "The number of volumes that were attempted to be "+
		"reconstructed from the operating system during kubelet startup. This includes both successful and failed "+
		"reconstruction.")
	s.unreconstructed = counted("reconstruct_volume_operations_errors_total",
		"The number of volumes that failed reconstruction from the operating system during kubelet startup.")
	s.cleaned = counted("force_cleaned_failed_volume_operations_total", "The number of volumes that were force cleaned "+
		"after their reconstruction failed during kubelet startup. This includes both successful and failed cleanups.")
	s.uncleaned = counted("force_cleaned_failed_volume_operation_errors_total", "The number of volumes that failed "+
		"force cleanup after their reconstruction failed during kubelet startup.")
	label := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(
			prometheus.GaugeOpts{Name: "volume_manager_selinux_" + name + "_total", Help: help}, labels)
	}
	s.badLabels = label("container_errors", "Number of errors when kubelet cannot compute SELinux context for a "+
		"container.", "access_mode")
	s.severalLabels = label("pod_context_mismatch_errors", "Number of errors when a Pod defines different SELinux "+
		"contexts for its containers that use the same volume.", "access_mode")
	s.conflicts = label("volume_context_mismatch_errors", "Number of errors when a Pod uses a volume that is already "+
		"mounted with a different SELinux context than the Pod needs.", "volume_plugin", "access_mode")
	s.labelled = label("volumes_admitted", "Number of volumes whose SELinux context was fine and will be mounted with "+
		"mount -o context option.", "volume_plugin", "access_mode")
	r.MustRegister(s.operations, s.calls, s.reconstructed, s.unreconstructed, s.cleaned, s.uncleaned, s.badLabels,
		s.severalLabels, s.conflicts, s.labelled)
	return s
}

var _ csi.Meter = (*Meter)(nil)

// Called implements csi.Meter.
func (m *Meter) Called(driver, method, code string, took time.Duration) {
	m.storage.calls.WithLabelValues(driver, method, code, "false").Observe(took.Seconds())
}

// Operation implements csi.Meter.
func (m *Meter) Operation(plugin, name string, err error, took time.Duration) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.storage.operations.WithLabelValues(plugin, name, status, "false").Observe(took.Seconds())
}

// Reconstructed implements csi.Meter.
func (m *Meter) Reconstructed(err error) {
	count(err, m.storage.reconstructed, m.storage.unreconstructed)
}

// ForceCleaned implements csi.Meter.
func (m *Meter) ForceCleaned(err error) { count(err, m.storage.cleaned, m.storage.uncleaned) }

func count(err error, all, failed prometheus.Counter) {
	all.Inc()
	if err != nil {
		failed.Inc()
	}
}

// Labelled implements csi.Meter.
func (m *Meter) Labelled(plugin, accessMode string, conflict bool) {
	if conflict {
		m.storage.conflicts.WithLabelValues(plugin, accessMode).Inc()
	} else {
		m.storage.labelled.WithLabelValues(plugin, accessMode).Inc()
	}
}

// NotLabelled counts a volume that has no SELinux label: containers of the pod need several, or one cannot be made.
func (m *Meter) NotLabelled(accessMode string, several bool) {
	if several {
		m.storage.severalLabels.WithLabelValues(accessMode).Inc()
	} else {
		m.storage.badLabels.WithLabelValues(accessMode).Inc()
	}
}

// volumeFamilies are those of the volumes of claims (S12.60), in the order of figuresOf.
var volumeFamilies = func() []*prometheus.Desc {
	var list []*prometheus.Desc
	for _, f := range [][2]string{{"capacity_bytes", "Capacity in bytes of the volume"},
		{"available_bytes", "Number of available bytes in the volume"},
		{"used_bytes", "Number of used bytes in the volume"},
		{"inodes", "Maximum number of inodes in the volume"},
		{"inodes_free", "Number of free inodes in the volume"},
		{"inodes_used", "Number of used inodes in the volume"}} {
		list = append(list, gauge("kubelet_volume_stats_"+f[0], f[1], "namespace", "persistentvolumeclaim"))
	}
	return list
}()

func figuresOf(s csi.Stats) []int64 {
	return []int64{s.Capacity, s.Available, s.Used, s.Inodes, s.InodesFree, s.InodesUsed}
}

// volumes shows each claim once, however many pods use it.
func (c collector) volumes(set func(d *prometheus.Desc, value float64, labels ...string)) {
	seen := map[[2]string]bool{}
	for _, s := range c.facts.Volumes() {
		claim := [2]string{s.Namespace, s.Claim}
		if seen[claim] {
			continue
		}
		seen[claim] = true
		for i, n := range figuresOf(s) {
			if n >= 0 {
				set(volumeFamilies[i], float64(n), s.Namespace, s.Claim)
			}
		}
	}
}
