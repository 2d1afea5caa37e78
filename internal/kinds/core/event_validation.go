package core

import (
	"context"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"carob/internal/kinds/rules"
)

// isStrict reports whether a request is for events.k8s.io, which has stricter rules for events than
// the core group.
func isStrict(ctx context.Context) bool {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	return ok && info.APIGroup == eventsv1.GroupName
}

func validateEventCreate(ctx context.Context, obj runtime.Object) field.ErrorList {
	e := obj.(*corev1.Event)
	errs := validateEvent(e, isStrict(ctx))
	if !isStrict(ctx) {
		return errs
	}
	errs = append(errs, apivalidation.ValidateObjectMeta(&e.ObjectMeta, true, apivalidation.NameIsDNSSubdomain,
		field.NewPath("metadata"))...)
	errs = append(errs, validateEventSeries(e.Series)...)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", e.Type)))
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"firstTimestamp", !e.FirstTimestamp.IsZero()}, {"lastTimestamp", !e.LastTimestamp.IsZero()},
		{"count", e.Count != 0}, {"source", e.Source != corev1.EventSource{}}} {
		if f.set {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", "needs to be unset"))
		}
	}
	return errs
}

// Only the series of a strict event can change.
func validateEventUpdate(ctx context.Context, obj, before runtime.Object) field.ErrorList {
	e, old := obj.(*corev1.Event), before.(*corev1.Event)
	errs := validateEvent(e, isStrict(ctx))
	if !isStrict(ctx) {
		return errs
	}
	if !reflect.DeepEqual(e.Series, old.Series) {
		errs = append(errs, validateEventSeries(e.Series)...)
	}
	for _, f := range []struct {
		name    string
		is, was any
	}{
		{"involvedObject", e.InvolvedObject, old.InvolvedObject}, {"reason", e.Reason, old.Reason},
		{"message", e.Message, old.Message}, {"source", e.Source, old.Source},
		{"firstTimestamp", e.FirstTimestamp, old.FirstTimestamp}, {"lastTimestamp", e.LastTimestamp, old.LastTimestamp},
		{"count", e.Count, old.Count}, {"type", e.Type, old.Type},
		{"eventTime", microseconds(e.EventTime), microseconds(old.EventTime)}, {"action", e.Action, old.Action},
		{"related", e.Related, old.Related},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	} {
		errs = append(errs, apivalidation.ValidateImmutableField(f.is, f.was, field.NewPath(f.name))...)
	}
	return errs
}

// microseconds is the stored precision of a time.
func microseconds(t metav1.MicroTime) metav1.MicroTime {
	return metav1.MicroTime{Time: t.Truncate(time.Microsecond).UTC()}
}

func validateEventSeries(s *corev1.EventSeries) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	if s.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if s.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// validateEvent validates the rules of both groups for an event; an event with eventTime is of the
// newer form.
func validateEvent(e *corev1.Event, strict bool) field.ErrorList {
	about := field.NewPath("involvedObject", "namespace")
	if e.EventTime.IsZero() {
		// Events about cluster-scoped objects are in the default namespace.
		if e.Namespace != e.InvolvedObject.Namespace &&
			(e.InvolvedObject.Namespace != "" || e.Namespace != corev1.NamespaceDefault) {
			return field.ErrorList{field.Invalid(about, e.InvolvedObject.Namespace, "does not match event.namespace")}
		}
		return nil
	}
	var errs field.ErrorList
	if e.InvolvedObject.Namespace == "" && e.Namespace != corev1.NamespaceDefault &&
		e.Namespace != metav1.NamespaceSystem {
		errs = append(errs, field.Invalid(about, e.InvolvedObject.Namespace, "does not match event.namespace"))
	}
	controller := field.NewPath("reportingComponent")
	if strict {
		controller = field.NewPath("reportingController")
	}
	errs = append(errs, rules.Required(controller, e.ReportingController)...)
	errs = append(errs, rules.Messages(controller, e.ReportingController,
		validation.IsQualifiedName(e.ReportingController))...)
	const short, long = 128, 1024
	for _, f := range []struct {
		name, value string
		needed      bool
		most        int
	}{{"reportingInstance", e.ReportingInstance, true, short}, {"action", e.Action, true, short},
		{"reason", e.Reason, true, short}, {"message", e.Message, false, long}} {
		if f.needed {
			errs = append(errs, rules.Required(field.NewPath(f.name), f.value)...)
		}
		if len(f.value) > f.most {
			errs = append(errs,
				field.Invalid(field.NewPath(f.name), "", fmt.Sprintf("can have at most %d characters", f.most)))
		}
	}
	return errs
}
