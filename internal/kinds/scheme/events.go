package scheme

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// Events are stored once, as the core kind, and served in two groups: note, regarding, and
// reportingController in one are message, involvedObject, and reportingComponent in the other.
func addEventConversions(s *runtime.Scheme) error {
	for _, c := range []struct {
		from, to any
		fn       conversion.ConversionFunc
	}{
		{(*corev1.Event)(nil), (*eventsv1.Event)(nil), func(a, b any, _ conversion.Scope) error {
			coreToEvents(a.(*corev1.Event), b.(*eventsv1.Event))
			return nil
		}},
		{(*eventsv1.Event)(nil), (*corev1.Event)(nil), func(a, b any, _ conversion.Scope) error {
			eventsToCore(a.(*eventsv1.Event), b.(*corev1.Event))
			return nil
		}},
		{(*corev1.EventList)(nil), (*eventsv1.EventList)(nil), func(a, b any, _ conversion.Scope) error {
			in, out := a.(*corev1.EventList), b.(*eventsv1.EventList)
			out.ListMeta, out.Items = in.ListMeta, make([]eventsv1.Event, len(in.Items))
			for i := range in.Items {
				coreToEvents(&in.Items[i], &out.Items[i])
			}
			return nil
		}},
		{(*eventsv1.EventList)(nil), (*corev1.EventList)(nil), func(a, b any, _ conversion.Scope) error {
			in, out := a.(*eventsv1.EventList), b.(*corev1.EventList)
			out.ListMeta, out.Items = in.ListMeta, make([]corev1.Event, len(in.Items))
			for i := range in.Items {
				eventsToCore(&in.Items[i], &out.Items[i])
			}
			return nil
		}},
	} {
		if err := s.AddConversionFunc(c.from, c.to, c.fn); err != nil {
			return err
		}
	}
	return nil
}

func coreToEvents(in *corev1.Event, out *eventsv1.Event) {
	*out = eventsv1.Event{
		ObjectMeta: in.ObjectMeta, EventTime: in.EventTime, ReportingController: in.ReportingController,
		ReportingInstance: in.ReportingInstance,
		Action:            in.Action, Reason: in.Reason, Regarding: in.InvolvedObject, Related: in.Related,
		Note:             in.Message,
		Type:             in.Type,
		DeprecatedSource: in.Source, DeprecatedFirstTimestamp: in.FirstTimestamp,
		DeprecatedLastTimestamp: in.LastTimestamp, DeprecatedCount: in.Count,
	}
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}

func eventsToCore(in *eventsv1.Event, out *corev1.Event) {
	*out = corev1.Event{
		ObjectMeta: in.ObjectMeta, EventTime: in.EventTime, ReportingController: in.ReportingController,
		ReportingInstance: in.ReportingInstance,
		Action:            in.Action, Reason: in.Reason, InvolvedObject: in.Regarding, Related: in.Related,
		Message: in.Note,
		Type:    in.Type,
		Source:  in.DeprecatedSource, FirstTimestamp: in.DeprecatedFirstTimestamp,
		LastTimestamp: in.DeprecatedLastTimestamp, Count: in.DeprecatedCount,
	}
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}
