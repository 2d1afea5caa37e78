package controllertest

import (
	"strings"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"

	"carob/internal/controllers/metrics"
)

// Metrics returns the metrics of the process, by family and the values of its labels, as
// "family{a,b}": values of counters and gauges, numbers of observations of histograms.
func Metrics(t *testing.T) map[string]float64 {
	t.Helper()
	metrics.Update()
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range all {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetValue())
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// Grown fails the test unless these metrics have grown by these amounts.
func Grown(t *testing.T, before map[string]float64, want map[string]float64) {
	t.Helper()
	now := Metrics(t)
	for name, n := range want {
		if got := now[name] - before[name]; got != n {
			t.Errorf("%s has grown by %v, want %v", name, got, n)
		}
	}
}
