// Package externalmetrics has the types with which a part of carob offers values as external.metrics.k8s.io, which the
// API server serves and HorizontalPodAutoscalers read (W8.22). It does nothing by itself.
//
// Contract: docs/spec/workloads.md.
package externalmetrics

import "time"

// Value is one value of a metric. The labels distinguish it from the others of its name.
type Value struct {
	Labels map[string]string
	Value  float64
	At     time.Time
}

// Source has values. Its methods may be called by any goroutine.
type Source interface {
	// Names are those of the metrics, sorted.
	Names() []string
	// Values are those of a metric in a namespace whose labels match; ok is false if there is no such metric. Reading a
	// value may have an effect: a reader of the number of waiting requests counts as an autoscaler.
	Values(namespace, metric string, match func(labels map[string]string) bool) (all []Value, ok bool)
}
