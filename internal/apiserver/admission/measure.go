package admission

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/admission"
	_ "k8s.io/apiserver/pkg/admission/metrics" // registers the families
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metrics with which upstream measures admission. Upstream's decorators look up the series each
// time, which costs more than most plugins do.
var (
	perPlugin = family("apiserver_admission_controller_admission_duration_seconds",
		"[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).", "name", "type", "operation", "rejected")
	perStep = family("apiserver_admission_step_admission_duration_seconds",
		"[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or admit).", "type", "operation", "rejected")
)

// family returns the histogram that is already registered with a name, or an unused one if a new
// version of the library registers it differently (a test fails then).
func family(name, help string, labels ...string) *prometheus.HistogramVec {
	own := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help}, labels)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](legacyregistry.Registerer().Register(own)); ok {
		if h, ok := there.ExistingCollector.(*metrics.HistogramVec); ok {
			return h.HistogramVec
		}
	}
	return own
}

// operations are those with cached histograms.
var operations = []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect}

// cachedHistogram caches the metrics of one plugin, or of all.
type cachedHistogram struct {
	vec    *prometheus.HistogramVec
	labels []string
	known  [2][4][2]atomic.Pointer[prometheus.Observer] // admit or validate, operation, admitted or rejected
}

const admits, validates = 0, 1

func (s *cachedHistogram) observe(step int, op admission.Operation, begin time.Time, err error) {
	took := time.Since(begin).Seconds()
	rejected := 0
	if err != nil {
		rejected = 1
	}
	for i, o := range operations {
		if o != op {
			continue
		}
		slot := &s.known[step][i][rejected]
		h := slot.Load()
		if h == nil {
			found := s.vec.WithLabelValues(append(append([]string{}, s.labels...), []string{"admit", "validate"}[step],
				string(op), strconv.FormatBool(err != nil))...)
			h = &found
			slot.Store(h)
		}
		(*h).Observe(took)
		return
	}
}

// measured is a plugin whose time is measured.
type measured struct {
	admission.Interface
	mutating   admission.MutationInterface   // nil if it does not mutate
	validating admission.ValidationInterface // nil if it does not validate
	histogram  cachedHistogram
}

// Measured measures the time of a plugin under its name.
func Measured(name string, p admission.Interface) admission.Interface {
	return newMeasured(p, perPlugin, name)
}

// MeasuredStep measures the time of all plugins together.
func MeasuredStep(p admission.Interface) admission.Interface { return newMeasured(p, perStep) }

func newMeasured(p admission.Interface, vec *prometheus.HistogramVec, labels ...string) *measured {
	m := &measured{Interface: p, histogram: cachedHistogram{vec: vec, labels: labels}}
	m.mutating, _ = p.(admission.MutationInterface)
	m.validating, _ = p.(admission.ValidationInterface)
	return m
}

// Admit implements admission.MutationInterface.
func (m *measured) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if m.mutating == nil {
		return nil
	}
	begin := time.Now()
	err := m.mutating.Admit(ctx, a, o)
	m.histogram.observe(admits, a.GetOperation(), begin, err)
	return err
}

// Validate implements admission.ValidationInterface.
func (m *measured) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if m.validating == nil {
		return nil
	}
	begin := time.Now()
	err := m.validating.Validate(ctx, a, o)
	m.histogram.observe(validates, a.GetOperation(), begin, err)
	return err
}
