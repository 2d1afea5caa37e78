package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"carob/internal/node/csi"
)

// storage are the families of work on volumes (S4.L).
type storage struct {
	operations, calls *prometheus.HistogramVec
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
	r.MustRegister(s.operations, s.calls)
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
