package core

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// eventTTL is how long an event is stored.
const eventTTL = time.Hour

func events() *registry.Resource {
	event := func(o runtime.Object) *corev1.Event { return o.(*corev1.Event) }
	f := map[string]func(runtime.Object) string{
		"involvedObject.kind":       func(o runtime.Object) string { return event(o).InvolvedObject.Kind },
		"involvedObject.namespace":  func(o runtime.Object) string { return event(o).InvolvedObject.Namespace },
		"involvedObject.name":       func(o runtime.Object) string { return event(o).InvolvedObject.Name },
		"involvedObject.uid":        func(o runtime.Object) string { return string(event(o).InvolvedObject.UID) },
		"involvedObject.apiVersion": func(o runtime.Object) string { return event(o).InvolvedObject.APIVersion },
		"involvedObject.resourceVersion": func(o runtime.Object) string {
			return event(o).InvolvedObject.ResourceVersion
		},
		"involvedObject.fieldPath": func(o runtime.Object) string { return event(o).InvolvedObject.FieldPath },
		"reason":                   func(o runtime.Object) string { return event(o).Reason },
		"reportingComponent":       func(o runtime.Object) string { return eventReporter(event(o)) },
		"source": func(o runtime.Object) string {
			if s := event(o).Source.Component; s != "" {
				return s
			}
			return event(o).ReportingController
		},
		"type": func(o runtime.Object) string { return event(o).Type },
	}
	return registry.Of[corev1.Event, corev1.EventList](registry.Resource{
		Kind: registry.CoreKind("Event"), Plural: "events", ShortNames: []string{"ev"}, NoGeneration: true,
		CreateOnUpdate: true, TTL: eventTTL, OwnMetadata: true,
		Dependents: rest.Unsupported,
		AlsoServed: []schema.GroupVersion{eventsv1.SchemeGroupVersion},
		AlsoFields: map[string]string{
			"regarding.kind": "involvedObject.kind", "regarding.namespace": "involvedObject.namespace",
			"regarding.name": "involvedObject.name",
			"regarding.uid":  "involvedObject.uid", "regarding.apiVersion": "involvedObject.apiVersion",
			"regarding.resourceVersion": "involvedObject.resourceVersion",
			"regarding.fieldPath":       "involvedObject.fieldPath", "reportingController": "reportingComponent",
		},
		Fields: f,
		Table: table.Kind{
			Columns: []table.Column{{Name: "Last Seen", Description: "Time the event was last seen"}, {Name: "Type"},
				{Name: "Reason"}, {Name: "Object"},
				{Name: "Subobject", Wide: true}, {Name: "Source", Wide: true}, {Name: "Message"},
				{Name: "First Seen", Wide: true},
				{Name: "Count", Wide: true}, {Name: "Name", Format: "name", Wide: true}},
			Row: eventRow,
		},
	})
}

func eventReporter(e *corev1.Event) string {
	if e.ReportingController != "" {
		return e.ReportingController
	}
	return e.Source.Component
}

func eventRow(o runtime.Object, now time.Time) []any {
	e := o.(*corev1.Event)
	first := table.Age(e.FirstTimestamp, now)
	if e.FirstTimestamp.IsZero() && !e.EventTime.IsZero() {
		first = table.AgeMicro(e.EventTime.Time, now)
	}
	last, count := table.Age(e.LastTimestamp, now), e.Count
	switch {
	case e.Series != nil:
		last, count = table.AgeMicro(e.Series.LastObservedTime.Time, now), e.Series.Count
	case e.LastTimestamp.IsZero():
		last = first
	}
	if count == 0 {
		count = 1
	}
	target := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		target += "/" + e.InvolvedObject.Name
	}
	source := eventReporter(e)
	if e.Source.Component != "" {
		source = e.Source.Component
	}
	if host := e.Source.Host; host != "" {
		source += ", " + host
	} else if e.ReportingInstance != "" && e.Source.Component == "" {
		source += ", " + e.ReportingInstance
	}
	return []any{last, e.Type, e.Reason, target, e.InvolvedObject.FieldPath, source, strings.TrimSpace(e.Message),
		first, int64(count), e.Name}
}
